// Imports damaged snapshots into every kind of cache. The input edits the fields of a valid export,
// also those of the snapshots inside it, and then its bytes. Whatever imports must export to the same
// bytes twice, restore, split and merge, and give all its memory back. Some inputs are payloads of stores,
// which may have a final state behind the snapshot.
//
//   input   kind, export, flags; then for each header: edits of fields, flags, edits of bytes; then the
//           final state
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fnv.h"
#include "cache/cells/kv_page.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "engine/persist/stored_state.h"
#include "fuzz_input.h"
#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/wrapper_cache.h"

namespace kvcache {
namespace {

using Bytes = std::vector<std::byte>;

constexpr SequenceId kFirst{0}, kSecond{1};
constexpr Position kTokens = 40;
constexpr int kDim = 32, kStateSize = 6, kChannels = 5, kBatch = 32;

enum class Use : std::uint8_t { kAttention, kState, kEncoder };
// A kind of cache, and what its layers are.
struct Kind {
  DType type = DType::kF16;
  std::unique_ptr<Cache> (*make)();
  std::vector<Use> layers;
};

std::unique_ptr<Cache> MakeFull() {
  return MakeCausalCache({.keys_identity = "model x"});
}
std::unique_ptr<Cache> MakeWindow() {
  return MakeCausalCache({.window = 12, .retained_tokens = 16});
}
std::unique_ptr<Cache> MakeChunk() {
  return MakeCausalCache({.chunk = 8});
}
std::unique_ptr<Cache> MakeEncoder() {
  return MakeEncoderCache({.max_tokens = 20});
}
RecurrentOptions StateOptions(int layer) {
  return {.layers = {layer},
          .conv_dim = 3,
          .conv_channels = kChannels,
          .state_size = kStateSize,
          .checkpoints = {.count = 2, .spacing = 4, .minimum = 0}};
}
std::unique_ptr<Cache> MakeRecurrent() {
  return MakeRecurrentCache(StateOptions(1));
}
std::unique_ptr<Cache> MakeStatesOnly() {
  return MakeRecurrentCache(StateOptions(0));
}
std::unique_ptr<Cache> MakeTwo(std::unique_ptr<Cache> first, std::unique_ptr<Cache> second,
                               std::vector<int> cache_of_layer) {
  WrapperOptions options{.caches = {}, .cache_of_layer = std::move(cache_of_layer)};
  options.caches.push_back(std::move(first));
  options.caches.push_back(std::move(second));
  return MakeWrapperCache(std::move(options));
}

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {DType::kF16, MakeFull, {Use::kAttention}},
      {DType::kQ8_0, MakeWindow, {Use::kAttention, Use::kAttention}},
      {DType::kQ4_0, MakeChunk, {Use::kAttention}},
      {DType::kF16, MakeEncoder, {Use::kEncoder}},
      {DType::kF16, MakeRecurrent, {Use::kAttention, Use::kState}},
      {DType::kF32, MakeStatesOnly, {Use::kState}},
      {DType::kQ8_0,
       [] {
         return MakeTwo(MakeWindow(), MakeFull(), {0, 1});
       },
       {Use::kAttention, Use::kAttention}},
      {DType::kF16,
       [] {
         return MakeTwo(MakeRecurrent(), MakeWindow(), {0, 0, 1});
       },
       {Use::kAttention, Use::kState, Use::kAttention}},
      {DType::kF16,
       [] {
         return MakeTwo(MakeFull(), MakeEncoder(), {0, 1});
       },
       {Use::kAttention, Use::kEncoder}},
  };
  return kinds;
}

void Require(const Status& status) {
  Check(status.ok());
}

std::unique_ptr<Cache> Open(const Kind& kind) {
  static const auto backend = std::move(*MakeCpuBackend({.threads = 1}));
  auto cache = kind.make();
  Require(cache->Init(*backend, {kind.type, kind.type, 2, 2 * kTokens, kBatch}));
  return cache;
}

// Returns whether the layer took what the model writes. A cache whose layers had no shapes takes those of
// a snapshot that it restores, and a damaged snapshot may have others.
bool WriteLayer(Cache& cache, Use use, int layer, std::int32_t tokens, bool has_item) {
  if (use == Use::kState) {
    for (const StateKind state : {StateKind::kConvolution, StateKind::kRecurrent}) {
      const auto segments = cache.Recurrent()->Segments(layer, state);
      Require(segments.status());
      for (const StateSegment& segment : segments->segments) {
        auto* const values = reinterpret_cast<float*>(segment.after);
        for (std::int64_t i = 0; i < segments->values; ++i) values[i] = static_cast<float>(i + 1);
      }
      Require(cache.Recurrent()->MarkWritten(layer, state));
    }
    return true;
  }
  if (use == Use::kEncoder && !has_item) return true;
  const std::int32_t count = use == Use::kEncoder ? 19 : tokens;
  std::vector<float> values(static_cast<std::size_t>(kDim * count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 61) - 30;
  const TensorView view = TensorView::Dense(values.data(), DType::kF32, kDim, 1, count);
  cache.SetLayer(layer);
  const Status status = cache.Put(view, view);
  Check(status.ok() || status.code() == StatusCode::kInvalidArgument);
  return status.ok();
}

// Evaluates positions [begin, end) of the sequence, as far as the cache allows. Returns whether all layers
// took what the model writes.
bool Fill(Cache& cache, const Kind& kind, SequenceId id, Position begin, Position end) {
  while (begin < end) {
    const std::int32_t count = std::min(kBatch, end - begin);
    BatchBuilder builder;
    builder.Add(id, begin, count);
    Batch batch = builder.view();
    const MultimodalItem item{.index = 0, .hash = 1};
    const bool has_item = begin == 0;
    if (has_item) batch.items = std::span(&item, 1);
    if (!cache.StartForward(batch, ForwardMode::kCompute).ok())
      return true;  // too many other tokens
    for (std::size_t i = 0; i < kind.layers.size(); ++i) {
      if (!WriteLayer(cache, kind.layers[i], static_cast<int>(i), count, has_item)) return false;
    }
    begin += count;
  }
  return true;
}

Bytes ExportOf(Cache& cache, const Snapshot& snapshot) {
  const auto size = cache.snapshots()->ExportSize(snapshot);
  Require(size.status());
  Bytes bytes(static_cast<std::size_t>(*size));
  Require(cache.snapshots()->Export(snapshot, bytes));
  return bytes;
}

// Returns valid exports: of a whole sequence, of its end, and of one with a gap in its positions.
std::vector<Bytes> ValidExports(const Kind& kind) {
  std::vector<Bytes> exports;
  for (const int variant : {0, 1, 2}) {
    const auto cache = Open(kind);
    Check(Fill(*cache, kind, kFirst, 0, 21));
    Check(Fill(*cache, kind, kFirst, variant == 2 ? 27 : 21, kTokens));
    const auto snapshot = cache->snapshots()->TakeSnapshot(kFirst, variant == 1 ? 17 : 0, kTokens);
    Require(snapshot.status());
    exports.push_back(ExportOf(*cache, **snapshot));
  }
  return exports;
}

const Bytes& ValidExport(std::size_t kind, std::size_t variant) {
  static const std::vector<std::vector<Bytes>> exports = [] {
    std::vector<std::vector<Bytes>> all;
    for (const Kind& each : Kinds()) all.push_back(ValidExports(each));
    return all;
  }();
  return exports[kind][variant % exports[kind].size()];
}

std::int64_t TakeNumber(std::string_view* input) {
  constexpr std::int64_t kSpecial[] = {0,         1,          -1,         15,         16,
                                       64,        0x7fffffff, 0x80000000, 0xffffffff, 1 << 24,
                                       1LL << 62, -1LL << 63, 4096};
  const std::uint8_t byte = TakeByte(input);
  if (byte < 128) return byte;
  if (byte < 128 + std::size(kSpecial)) return kSpecial[byte - 128];
  std::int64_t number = 0;
  for (int i = 0; i < byte % 8; ++i) number = number * 256 + TakeByte(input);
  return number;
}

// Replaces, adds or removes an element.
template <class T>
void EditList(std::vector<T>& list, std::string_view* input, const T& value) {
  const std::size_t at = TakeByte(input);
  switch (TakeByte(input) % 3) {
    case 0:
      if (!list.empty()) list[at % list.size()] = value;
      break;
    case 1:
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(at % (list.size() + 1)), value);
      break;
    default:
      if (!list.empty()) list.erase(list.begin() + static_cast<std::ptrdiff_t>(at % list.size()));
  }
}

void EditField(SnapshotHeader& header, std::string_view* input) {
  switch (TakeByte(input) % 9) {
    case 0: header.begin = static_cast<Position>(TakeNumber(input)); break;
    case 1: header.end = static_cast<Position>(TakeNumber(input)); break;
    case 2: header.kind = static_cast<SnapshotKind>(TakeNumber(input)); break;
    case 3: {
      const auto begin = static_cast<Position>(TakeNumber(input));
      const auto end = static_cast<Position>(TakeNumber(input));
      EditList(header.ranges, input, {begin, end});
      break;
    }
    case 4: {
      LayerKv layer = header.layers.empty() ? LayerKv{} : header.layers.front();
      layer.shape.kv_heads = static_cast<int>(TakeNumber(input));
      layer.shape.k_dim = static_cast<int>(TakeNumber(input));
      layer.shape.v_dim = static_cast<int>(TakeNumber(input));
      layer.shape.v_in_k = TakeByte(input) % 2 == 1;
      const std::uint8_t types = TakeByte(input);
      if (types % 2 == 1) layer.k_type = static_cast<DType>(types / 16);
      if (types % 4 >= 2) layer.v_type = static_cast<DType>(types / 4 % 16);
      EditList(header.layers, input, layer);
      break;
    }
    case 5: EditList(header.numbers, input, TakeNumber(input)); break;
    case 6: EditList(header.parts, input, TakeNumber(input)); break;
    case 7: header.payload = TakeNumber(input); break;
    default: header.fingerprint = TakeText(input, TakeByte(input));
  }
}

// Returns the size that the ranges and the layers of a header ask for; at most 1 MiB.
std::size_t WantedPayload(SnapshotHeader& header) {
  constexpr std::int64_t kMax = 1 << 20;
  std::int64_t cells = 0;
  if (!header.ranges.empty()) {
    cells = (std::int64_t{header.ranges.back().end} + 15) / 16 * 16 -
            header.ranges.front().begin / 16 * 16;
  }
  for (const LayerKv& layer : header.layers) {
    for (const int value : {layer.shape.kv_heads, layer.shape.k_dim, layer.shape.v_dim}) {
      if (value < 0 || value > 4096) return 0;
    }
    if (static_cast<std::uint8_t>(layer.k_type) > static_cast<std::uint8_t>(DType::kI32)) return 0;
    if (static_cast<std::uint8_t>(layer.v_type) > static_cast<std::uint8_t>(DType::kI32)) return 0;
    if (layer.shape.k_dim % 32 != 0 || layer.shape.v_dim % 32 != 0) return 0;
  }
  if (cells < 0 || cells > 4096) return 0;
  return static_cast<std::size_t>(
      std::clamp(LayOutOnHost(header.layers, cells, nullptr), std::int64_t{0}, kMax));
}

void FixSum(Bytes& bytes, std::size_t header_bytes) {
  const std::uint64_t none = 0;
  std::memcpy(bytes.data() + 16, &none, sizeof(none));
  Fnv1a sum;
  sum.Add(std::span(bytes).first(header_bytes));
  const std::uint64_t value = sum.sum();
  std::memcpy(bytes.data() + 16, &value, sizeof(value));
}

enum Flag : std::uint8_t { kResize = 1, kKeepPayload = 2, kFlip = 4, kSum = 8, kCut = 16 };

Bytes Damage(const Bytes& bytes, std::string_view* input, int depth) {
  auto read = ReadHeader(bytes);
  if (!read.ok()) return bytes;
  SnapshotHeader& header = read->header;
  Bytes payload(bytes.begin() + static_cast<std::ptrdiff_t>(read->size), bytes.end());
  if (!header.parts.empty() && depth > 0 && TakeByte(input) % 2 == 1) {
    const std::size_t part = TakeByte(input) % header.parts.size();
    std::int64_t before = 0;
    for (std::size_t i = 0; i < part; ++i) before += header.parts[i];
    const auto begin = payload.begin() + static_cast<std::ptrdiff_t>(before);
    const auto end = begin + static_cast<std::ptrdiff_t>(header.parts[part]);
    const Bytes inner = Damage(Bytes(begin, end), input, depth - 1);
    const Bytes after(end, payload.end());
    payload.erase(begin, payload.end());
    payload.insert(payload.end(), inner.begin(), inner.end());
    payload.insert(payload.end(), after.begin(), after.end());
    header.parts[part] = static_cast<std::int64_t>(inner.size());
  }
  for (int edits = TakeByte(input) % 5; edits > 0; --edits) EditField(header, input);
  const std::uint8_t flags = TakeByte(input);
  if ((flags & kResize) != 0 && header.parts.empty()) payload.resize(WantedPayload(header));
  if ((flags & kCut) != 0) payload.resize(static_cast<std::size_t>(TakeNumber(input)) % 8192);
  if ((flags & kKeepPayload) == 0) header.payload = static_cast<std::int64_t>(payload.size());
  Bytes result = WriteHeader(header);
  const std::size_t header_bytes = result.size();
  result.insert(result.end(), payload.begin(), payload.end());
  if ((flags & kFlip) != 0) {
    const auto at = static_cast<std::size_t>(TakeNumber(input));
    result[at % result.size()] ^= static_cast<std::byte>(TakeByte(input));
  }
  if ((flags & kSum) != 0) FixSum(result, header_bytes);
  return result;
}

constexpr std::int64_t kHiddenSize = 4;

// Appends a final state that is right or nearly so, or other bytes.
void AppendFinalState(Bytes& bytes, std::string_view* input) {
  const auto append = [&](const void* data, std::size_t size) {
    const auto* const begin = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  const std::uint8_t flags = TakeByte(input);
  const Position position =
      (flags & 1) == 0 ? kTokens - 1 : static_cast<Position>(TakeNumber(input));
  const auto count = static_cast<std::uint32_t>((flags & 2) == 0 ? kHiddenSize : TakeNumber(input));
  const std::size_t values = (flags & 4) == 0 ? kHiddenSize : TakeByte(input) % 9;
  append((flags & 8) == 0 ? "kvlast01" : "kvlast02", 8);
  append(&position, sizeof(position));
  append(&count, sizeof(count));
  for (std::size_t i = 0; i < values; ++i) {
    std::uint8_t value[4] = {};
    for (std::uint8_t& byte : value) byte = TakeByte(input);
    append(value, sizeof(value));
  }
  if ((flags & 16) != 0) bytes.resize(bytes.size() - TakeByte(input) % 16);
}

// Imports the bytes, or reads them as the payload of a store.
Result<std::unique_ptr<Snapshot>> ReadSnapshot(Cache& cache, const Bytes& bytes, bool is_payload,
                                               std::int64_t hidden_size) {
  if (!is_payload) return cache.snapshots()->Import(bytes);
  KVCACHE_ASSIGN_OR_RETURN(StoredState state, ReadStoredState(cache, bytes, hidden_size));
  Check(state.last.empty() || std::ssize(state.last) == hidden_size);
  for (const float value : state.last) Check(std::isfinite(value));
  return std::move(state.snapshot);
}

// Restores the snapshot to `target`; the check must foresee the result.
bool Restored(Cache& cache, const Snapshot& snapshot, Position target) {
  const bool expected = cache.snapshots()->CheckRestore(kSecond, &snapshot, target).ok();
  const Status status = cache.snapshots()->Restore(kSecond, &snapshot, target);
  Check(status.ok() == expected);
  return expected;
}

void UseSnapshot(Cache& cache, const Kind& kind, std::unique_ptr<Snapshot> snapshot, Position split,
                 bool may_refuse) {
  const Position begin = snapshot->begin();
  const Position end = snapshot->end();
  Check(begin >= 0 && begin <= end);
  Check(snapshot->HeldCells() == 0);
  const Bytes bytes = ExportOf(cache, *snapshot);
  auto again = cache.snapshots()->Import(bytes);
  Require(again.status());
  Check(ExportOf(cache, **again) == bytes);
  Require(cache.snapshots()->Materialize(*snapshot));
  if (begin > 0 && begin <= kTokens) Check(Fill(cache, kind, kSecond, 0, begin));
  if (Restored(cache, *snapshot, end) && end < kEndOfSequence && cache.CanResume(kSecond, end)) {
    const bool filled = Fill(cache, kind, kSecond, end, end + 1);
    Check(filled || may_refuse);
  }
  if (split > begin && split < end) {
    auto parts = cache.snapshots()->SplitSnapshot(snapshot, split);
    Require(parts.status());
    if (parts->first != nullptr) {
      Restored(cache, *parts->first, parts->first->end());
      auto merged = cache.snapshots()->MergeSnapshots(parts->first, parts->second);
      Require(merged.status());
      snapshot = std::move(*merged);
    } else {
      snapshot = std::move(parts->second);
    }
    Check(snapshot->end() == end);
    ExportOf(cache, *snapshot);
    Restored(cache, *snapshot, end);
  }
  Require(cache.Remove(kSecond, 0, kEndOfSequence));
}

void Run(std::string_view input) {
  const std::size_t number = TakeByte(&input) % Kinds().size();
  const Kind& kind = Kinds()[number];
  const std::uint8_t variant = TakeByte(&input);
  const std::uint8_t flags = TakeByte(&input);
  const std::size_t source = (flags & 2) == 0 ? number : TakeByte(&input) % Kinds().size();
  const auto split = static_cast<Position>(TakeByte(&input) % (kTokens + 1));
  Bytes bytes = Damage(ValidExport(source, variant), &input, 2);
  const bool is_payload = (flags & 4) != 0;
  if (is_payload) AppendFinalState(bytes, &input);
  const auto cache = Open(kind);
  const bool has_shapes = (flags & 1) != 0;
  if (has_shapes) Check(Fill(*cache, kind, kFirst, 0, 9));
  auto snapshot = ReadSnapshot(*cache, bytes, is_payload, (flags & 8) == 0 ? kHiddenSize : 0);
  if (snapshot.ok()) {
    UseSnapshot(*cache, kind, std::move(*snapshot), split,
                !has_shapes && bytes != ValidExport(number, variant));
  } else {
    const StatusCode code = snapshot.status().code();
    Check(code == StatusCode::kCorrupt || code == StatusCode::kInvalidArgument ||
          code == StatusCode::kUnsupported || code == StatusCode::kOutOfMemory);
    Check(!snapshot.status().message().empty());
  }
  Check(cache->snapshots()->SnapshotBytes() == 0);
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvcache::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
