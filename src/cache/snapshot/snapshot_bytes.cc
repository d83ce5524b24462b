#include "cache/snapshot/snapshot_bytes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/fnv.h"
#include "base/strings.h"
#include "cache/cache_checks.h"
#include "cache/cells/kv_page.h"
#include "cache/pass/layer_store.h"

namespace kvcache {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::array<char, 8> kMagic = {'k', 'v', 's', 'n', 'a', 'p', '0', '1'};
constexpr std::size_t kSumOffset = 16;
constexpr std::size_t kMaxFingerprint = 4096;

std::uint64_t Sum(std::span<const std::byte> bytes) {
  Fnv1a sum;
  sum.Add(bytes);
  return sum.sum();
}

class Writer {
 public:
  template <class T>
  void Put(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void PutText(const std::string& text) {
    Put(static_cast<std::uint32_t>(text.size()));
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Reads past the end give zeros and clear ok().
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T Get() {
    T value{};
    if (bytes_.size() - at_ < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  // Returns a count of items of `bytes` each, or 0 with ok() cleared if they do not fit.
  std::size_t GetCount(std::size_t max, std::size_t bytes) {
    const auto count = std::size_t{Get<std::uint32_t>()};
    ok_ = ok_ && count <= max && count * bytes <= bytes_.size() - at_;
    return ok_ ? count : 0;
  }
  std::string GetText(std::size_t max) {
    const std::size_t size = GetCount(max, 1);
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
    at_ += size;
    return text;
  }
  bool ok() const { return ok_; }
  std::size_t at() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

void PutLayer(Writer& out, const LayerKv& layer) {
  out.Put(static_cast<std::int32_t>(layer.shape.kv_heads));
  out.Put(static_cast<std::int32_t>(layer.shape.k_dim));
  out.Put(static_cast<std::int32_t>(layer.shape.v_dim));
  out.Put(static_cast<std::uint8_t>(layer.shape.v_in_k));
  out.Put(static_cast<std::uint8_t>(layer.k_type));
  out.Put(static_cast<std::uint8_t>(layer.v_type));
  out.Put(std::uint8_t{0});
}
constexpr std::size_t kLayerBytes = 16;

// Returns whether the values of a layer's shape make sense; sizes are bounded by the payload.
bool GetLayer(Reader& in, LayerKv& layer) {
  layer.shape.kv_heads = in.Get<std::int32_t>();
  layer.shape.k_dim = in.Get<std::int32_t>();
  layer.shape.v_dim = in.Get<std::int32_t>();
  const auto v_in_k = in.Get<std::uint8_t>();
  const auto k_type = in.Get<std::uint8_t>();
  const auto v_type = in.Get<std::uint8_t>();
  in.Get<std::uint8_t>();
  layer.shape.v_in_k = v_in_k != 0;
  constexpr auto kLast = static_cast<std::uint8_t>(DType::kI32);
  constexpr int kMaxValues = 1 << 20;
  if (v_in_k > 1 || k_type > kLast || v_type > kLast) return false;
  layer.k_type = static_cast<DType>(k_type);
  layer.v_type = static_cast<DType>(v_type);
  if (layer.shape == KvShape{}) return true;  // no bytes
  for (const int value : {layer.shape.kv_heads, layer.shape.k_dim, layer.shape.v_dim}) {
    if (value < 1 || value > kMaxValues) return false;
  }
  return layer.shape.k_dim % InfoOf(layer.k_type).block_size == 0 &&
         layer.shape.v_dim % InfoOf(layer.v_type).block_size == 0;
}

}  // namespace

std::vector<std::byte> WriteHeader(const SnapshotHeader& header) {
  Writer out;
  for (const char c : kMagic) out.Put(c);
  out.Put(std::uint64_t{0});  // the header's size
  out.Put(std::uint64_t{0});  // its checksum
  out.Put(static_cast<std::uint32_t>(header.kind));
  out.Put(header.begin);
  out.Put(header.end);
  out.Put(header.payload);
  out.PutText(header.fingerprint);
  out.Put(static_cast<std::uint32_t>(header.numbers.size()));
  for (const std::int64_t number : header.numbers) out.Put(number);
  out.Put(static_cast<std::uint32_t>(header.ranges.size()));
  for (const auto& [begin, end] : header.ranges) {
    out.Put(begin);
    out.Put(end);
  }
  out.Put(static_cast<std::uint32_t>(header.layers.size()));
  for (const LayerKv& layer : header.layers) PutLayer(out, layer);
  out.Put(static_cast<std::uint32_t>(header.parts.size()));
  for (const std::int64_t part : header.parts) out.Put(part);
  std::vector<std::byte> bytes = std::move(out.bytes());
  bytes.resize(RoundUp(static_cast<std::int64_t>(bytes.size()), kSnapshotAlignment));
  const auto size = static_cast<std::uint64_t>(bytes.size());
  std::memcpy(bytes.data() + 8, &size, sizeof(size));
  const std::uint64_t sum = Sum(bytes);  // with zeros in its own place
  std::memcpy(bytes.data() + kSumOffset, &sum, sizeof(sum));
  return bytes;
}

Result<ReadSnapshotHeader> ReadHeader(std::span<const std::byte> bytes) {
  Reader sizes(bytes);
  for (const char c : kMagic) {
    if (sizes.Get<char>() != c) return CorruptBytes("they do not begin with 'kvsnap01'");
  }
  const auto size = sizes.Get<std::uint64_t>();
  const auto sum = sizes.Get<std::uint64_t>();
  if (!sizes.ok() || size > bytes.size() || size % kSnapshotAlignment != 0 || size == 0) {
    return CorruptBytes(StrCat("the header has ", size, " bytes of ", bytes.size()));
  }
  std::vector<std::byte> copy(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
  std::memset(copy.data() + kSumOffset, 0, sizeof(sum));
  if (Sum(copy) != sum) return CorruptBytes("the checksum of the header is wrong");
  Reader in(std::span<const std::byte>(copy).subspan(sizes.at()));
  ReadSnapshotHeader result;
  result.size = static_cast<std::int64_t>(size);
  SnapshotHeader& header = result.header;
  header.kind = static_cast<SnapshotKind>(in.Get<std::uint32_t>());
  header.begin = in.Get<Position>();
  header.end = in.Get<Position>();
  header.payload = in.Get<std::int64_t>();
  header.fingerprint = in.GetText(kMaxFingerprint);
  header.numbers.resize(in.GetCount(16, sizeof(std::int64_t)));
  for (std::int64_t& number : header.numbers) number = in.Get<std::int64_t>();
  header.ranges.resize(in.GetCount(kMaxRanges, 2 * sizeof(Position)));
  Position last = 0;
  for (auto& [begin, end] : header.ranges) {
    begin = in.Get<Position>();
    end = in.Get<Position>();
    if (begin < last || end <= begin) return CorruptBytes("the ranges of positions do not ascend");
    last = end;
  }
  header.layers.resize(in.GetCount(LayerStore::kMaxLayers, kLayerBytes));
  for (LayerKv& layer : header.layers) {
    if (!GetLayer(in, layer)) return CorruptBytes("a layer's shape or type is impossible");
  }
  header.parts.resize(in.GetCount(kMaxParts, sizeof(std::int64_t)));
  for (std::int64_t& part : header.parts) part = in.Get<std::int64_t>();
  if (!in.ok()) return CorruptBytes("the header ends early");
  if (header.begin < 0 || header.end < header.begin) {
    return CorruptBytes(StrCat("the range is [", header.begin, ", ", header.end, ")"));
  }
  if (header.payload != static_cast<std::int64_t>(bytes.size()) - result.size) {
    return CorruptBytes(StrCat("the payload has ",
                               static_cast<std::int64_t>(bytes.size()) - result.size,
                               " bytes; the header says ", header.payload));
  }
  return result;
}

Status CheckOrigin(const SnapshotHeader& header, SnapshotKind kind,
                   const std::string& fingerprint) {
  if (header.kind == kind && header.fingerprint == fingerprint) return Status::Ok();
  return Invalid(StrCat("the snapshot is of a cache '", header.fingerprint, "'; this one is '",
                        fingerprint, "'"));
}

std::string IdentityText(std::string_view kind, const CacheStorage& storage,
                         std::string_view keys_identity) {
  const CacheOptions& options = storage.options();
  const bool blocks =
      InfoOf(options.k_type).block_size > 1 || InfoOf(options.v_type).block_size > 1;
  return StrCat(kind, ", K ", InfoOf(options.k_type).name, ", V ", InfoOf(options.v_type).name,
                blocks ? ", blocks of the backend " : "",
                blocks ? storage.backend().tile_format() : std::string_view(),
                keys_identity.empty() ? "" : ", ", keys_identity, "\n",
                storage.layers().ShapesText());
}

std::int64_t ExportedSize(const SnapshotHeader& header) {
  return static_cast<std::int64_t>(WriteHeader(header).size()) + header.payload;
}

Result<std::span<std::byte>> BeginExport(const SnapshotHeader& header, std::span<std::byte> bytes) {
  const std::vector<std::byte> text = WriteHeader(header);
  const std::int64_t size = static_cast<std::int64_t>(text.size()) + header.payload;
  if (size != static_cast<std::int64_t>(bytes.size())) {
    return Invalid(StrCat("the export has ", size, " bytes; the memory has ", bytes.size()));
  }
  std::copy(text.begin(), text.end(), bytes.begin());
  return bytes.subspan(text.size());
}

Status CheckLayers(std::span<const LayerKv> layers, const CacheStorage& storage) {
  const CacheOptions& options = storage.options();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerKv& layer = layers[i];
    if (layer.shape.kv_heads == 0) continue;
    const DType v_type = layer.shape.v_in_k ? options.k_type : options.v_type;
    if (layer.k_type != options.k_type || layer.v_type != v_type) {
      return Invalid(StrCat("layer ", i, " of the snapshot has K ", InfoOf(layer.k_type).name,
                            " and V ", InfoOf(layer.v_type).name, "; the cache has ",
                            InfoOf(options.k_type).name, " and ", InfoOf(v_type).name));
    }
    KVCACHE_RETURN_IF_ERROR(
        storage.layers().CheckLayer(static_cast<int>(i), layer.shape, "the snapshot"));
  }
  return Status::Ok();
}

// The sum must not overflow, whatever the header says.
Status CheckPayload(const SnapshotHeader& header, std::int64_t cells) {
  // Positions of a cache without attention layers have no bytes that would bound them.
  constexpr std::int64_t kMaxEmptyCells = std::int64_t{1} << 24;
  if (cells > kMaxEmptyCells && header.payload == 0) {
    return CorruptBytes(
        StrCat(cells, " positions without keys and values; must be at most ", kMaxEmptyCells));
  }
  std::int64_t size = 0;
  for (const LayerKv& layer : header.layers) {
    const std::int64_t values =
        std::int64_t{layer.shape.kv_heads} * (layer.shape.k_dim + std::int64_t{layer.shape.v_dim});
    std::int64_t max = 0;
    if (__builtin_mul_overflow(values, cells * 4, &max) ||
        __builtin_add_overflow(size, max, &size) ||
        size > std::numeric_limits<std::int64_t>::max() / 4) {
      return CorruptBytes("the layers have more bytes than an int64 can count");
    }
  }
  std::vector<LayerKv> layers = header.layers;
  const std::int64_t expected = LayOutOnHost(layers, cells, nullptr);
  if (expected == header.payload) return Status::Ok();
  return CorruptBytes(StrCat(header.payload, " bytes of keys and values; must be ", expected));
}

}  // namespace kvcache
