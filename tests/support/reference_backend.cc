#include "support/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "support/naive_floats.h"
#include "support/visibility_rule.h"

namespace kvcache::testing {
namespace {

constexpr std::size_t kAlignmentBytes = 64;

class HostBuffer : public Buffer {
 public:
  HostBuffer(std::size_t size_bytes, std::shared_ptr<std::int64_t> live_bytes)
      : size_bytes_(size_bytes), live_bytes_(std::move(live_bytes)) {
    // Allocates exactly the requested bytes, so that the address sanitizer detects overruns.
    data_ = static_cast<std::byte*>(::operator new(size_bytes, std::align_val_t(kAlignmentBytes)));
    std::memset(data_, 0, size_bytes);
    *live_bytes_ += static_cast<std::int64_t>(size_bytes);
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer() override {
    *live_bytes_ -= static_cast<std::int64_t>(size_bytes_);
    ::operator delete(data_, std::align_val_t(kAlignmentBytes));
  }

  std::byte* data() override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::byte* data_;
  std::size_t size_bytes_;
  std::shared_ptr<std::int64_t> live_bytes_;
};

Status Broken(const std::string& what) {
  return {StatusCode::kInternal, "reference: " + what};
}

bool InRange(const LayerKv& layer, std::int64_t cell, std::int64_t length) {
  return length > 0 && cell >= 0 && cell + length <= layer.cells;
}

// Returns the cells of `runs` one by one, or an empty list if one lies outside the layer.
std::vector<std::int32_t> CellsOf(const LayerKv& layer, std::span<const CellRun> runs) {
  std::vector<std::int32_t> cells;
  for (const CellRun& run : runs) {
    if (!InRange(layer, run.cell, run.length)) return {};
    for (std::int32_t i = 0; i < run.length; ++i) cells.push_back(run.cell + i);
  }
  return cells;
}

float BatchValue(const TensorView& view, std::int64_t d, std::int64_t head, std::int64_t token) {
  float value;
  std::memcpy(&value,
              view.data + d * view.stride_bytes[0] + head * view.stride_bytes[1] +
                  token * view.stride_bytes[2],
              sizeof(value));
  return value;
}

bool Overlap(std::span<const CellMove> moves) {
  for (const CellMove& a : moves) {
    for (const CellMove& b : moves) {
      if (a.from < b.to + b.length && b.to < a.from + a.length) return true;
      if (&a != &b && a.to < b.to + b.length && b.to < a.to + a.length) return true;
    }
  }
  return false;
}

void CopyCell(const LayerKv& layer, std::int32_t from, std::int32_t to) {
  for (int head = 0; head < layer.shape.kv_heads; ++head) {
    for (int d = 0; d < layer.shape.k_dim; ++d) {
      StoreValue(layer.k_type, layer.k, KIndex(layer, to, head, d),
                 LoadValue(layer.k_type, layer.k, KIndex(layer, from, head, d)));
    }
    if (layer.shape.v_in_k) continue;
    for (int d = 0; d < layer.shape.v_dim; ++d) {
      StoreValue(layer.v_type, layer.v, VIndex(layer, to, head, d),
                 LoadValue(layer.v_type, layer.v, VIndex(layer, from, head, d)));
    }
  }
}

struct SeenCell {
  std::int32_t cell;
  Position position;
  double score;
};

std::vector<SeenCell> SeenCells(const Visibility& visibility, std::size_t query) {
  std::vector<SeenCell> seen;
  for (const HistoryRun& run : visibility.histories[visibility.history_of_query[query]]) {
    for (std::int32_t i = 0; i < run.length; ++i) {
      if (Sees(visibility, query, run.position + i))
        seen.push_back({run.cell + i, run.position + i, 0.0});
    }
  }
  return seen;
}

double BiasOf(const PositionBias& bias, int head, Position distance) {
  if (bias.values.empty()) return 0.0;
  const int index = std::clamp(distance, -bias.past, bias.future) + bias.past;
  return bias.values[static_cast<std::size_t>(head * (bias.past + 1 + bias.future) + index)];
}

// Replaces scores by weights and returns their sum, sinks included.
double Weigh(std::vector<SeenCell>& seen, const AttentionOptions& options, int head,
             Position query) {
  double largest = options.sinks.empty() ? -INFINITY : options.sinks[head];
  for (SeenCell& cell : seen) {
    if (options.soft_cap > 0) {
      cell.score = options.soft_cap * std::tanh(cell.score / options.soft_cap);
    }
    cell.score += BiasOf(options.bias, head, cell.position - query);
    largest = std::max(largest, cell.score);
  }
  double sum = options.sinks.empty() ? 0.0 : std::exp(options.sinks[head] - largest);
  for (SeenCell& cell : seen) sum += cell.score = std::exp(cell.score - largest);
  return sum;
}

}  // namespace

std::int64_t KIndex(const LayerKv& layer, std::int32_t cell, int head, int d) {
  const std::int64_t dim = layer.shape.k_dim;
  if (layer.layout == KvLayout::kPlain) {
    return (std::int64_t{cell} * layer.shape.kv_heads + head) * dim + d;
  }
  const std::int64_t tile = head * (layer.cells / kCellTile) + cell / kCellTile;
  return (tile * dim + d) * kCellTile + cell % kCellTile;
}

std::int64_t VIndex(const LayerKv& layer, std::int32_t cell, int head, int d) {
  if (layer.shape.v_in_k) return KIndex(layer, cell, head, d);
  const std::int64_t dim = layer.shape.v_dim;
  if (layer.v_transposed) return (head * dim + d) * layer.cells + cell;
  if (layer.layout == KvLayout::kPlain) {
    return (std::int64_t{cell} * layer.shape.kv_heads + head) * dim + d;
  }
  return (head * layer.cells + cell) * dim + d;
}

float LoadValue(DType type, const std::byte* base, std::int64_t index) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, base + index * 4, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, base + index * 2, sizeof(bits));
  return type == DType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

void StoreValue(DType type, std::byte* base, std::int64_t index, float value) {
  if (type == DType::kF32) {
    std::memcpy(base + index * 4, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits = type == DType::kF16 ? F32ToF16(value) : F32ToBf16(value);
  std::memcpy(base + index * 2, &bits, sizeof(bits));
}

std::vector<float> ReadKey(const LayerKv& layer, std::int32_t cell) {
  std::vector<float> key;
  for (int head = 0; head < layer.shape.kv_heads; ++head) {
    for (int d = 0; d < layer.shape.k_dim; ++d) {
      key.push_back(LoadValue(layer.k_type, layer.k, KIndex(layer, cell, head, d)));
    }
  }
  return key;
}

float LoadV(const LayerKv& layer, std::int32_t cell, int head, int d) {
  return LoadValue(layer.v_type, layer.shape.v_in_k ? layer.k : layer.v,
                   VIndex(layer, cell, head, d));
}

std::vector<float> ReadValue(const LayerKv& layer, std::int32_t cell) {
  std::vector<float> value;
  for (int head = 0; head < layer.shape.kv_heads; ++head) {
    for (int d = 0; d < layer.shape.v_dim; ++d) {
      value.push_back(LoadV(layer, cell, head, d));
    }
  }
  return value;
}

float Rounded(DType type, float value) {
  std::byte bytes[sizeof(float)];
  StoreValue(type, bytes, 0, value);
  return LoadValue(type, bytes, 0);
}

void RotateKey(std::span<float> key, Position offset, const RopeParams& rope) {
  const int pairs = rope.dims / 2;
  for (int i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(offset) * static_cast<double>(rope.inv_freq[i]);
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    const bool halves = rope.pairing == RopeParams::Pairing::kHalves;
    float& x = key[rope.first + (halves ? i : 2 * i)];
    float& y = key[rope.first + (halves ? i + pairs : 2 * i + 1)];
    const float turned = x * cosine - y * sine;
    y = x * sine + y * cosine;
    x = turned;
  }
}

ReferenceBackend::~ReferenceBackend() = default;

bool ReferenceBackend::Fails(Call call) {
  if (countdown_ == 0 || (failing_ != Call::kAny && failing_ != call)) return false;
  return --countdown_ == 0;
}

Status ReferenceBackend::CheckKvTypes(DType k_type, DType v_type, KvLayout) const {
  for (const DType type : {k_type, v_type}) {
    if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
      return {StatusCode::kUnsupported,
              "the reference backend has no caches in " + std::string(InfoOf(type).name)};
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<Buffer>> ReferenceBackend::Allocate(std::size_t size_bytes) {
  if (Fails(Call::kAllocate)) {
    return Status(StatusCode::kOutOfMemory,
                  "injected failure of an allocation of " + std::to_string(size_bytes) + " bytes");
  }
  return std::unique_ptr<Buffer>(std::make_unique<HostBuffer>(size_bytes, live_bytes_));
}

Status ReferenceBackend::StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                                 std::span<const CellRun> runs) {
  std::vector<std::int32_t> cells = CellsOf(layer, runs);
  if (static_cast<std::int64_t>(cells.size()) != k.dims[2]) return Broken("store: cells");
  const bool fails = Fails(Call::kStore);
  if (fails) cells.resize(cells.size() / 2);
  for (std::size_t token = 0; token < cells.size(); ++token) {
    for (int head = 0; head < layer.shape.kv_heads; ++head) {
      for (int d = 0; d < layer.shape.k_dim; ++d) {
        StoreValue(layer.k_type, layer.k, KIndex(layer, cells[token], head, d),
                   BatchValue(k, d, head, token));
      }
      if (layer.shape.v_in_k) continue;
      for (int d = 0; d < layer.shape.v_dim; ++d) {
        StoreValue(layer.v_type, layer.v, VIndex(layer, cells[token], head, d),
                   BatchValue(v, d, head, token));
      }
    }
  }
  return fails ? Status(StatusCode::kIo, "injected failure of a store") : Status::Ok();
}

Status ReferenceBackend::CopyCells(const LayerKv& layer, std::span<const CellMove> moves) {
  for (const CellMove& move : moves) {
    if (!InRange(layer, move.from, move.length) || !InRange(layer, move.to, move.length)) {
      return Broken("copy: range");
    }
  }
  if (Overlap(moves)) return Broken("copy: overlap");
  const bool fails = Fails(Call::kCopy);
  for (const CellMove& move : moves) {
    for (std::int32_t i = 0; i < (fails ? move.length / 2 : move.length); ++i) {
      CopyCell(layer, move.from + i, move.to + i);
    }
  }
  return fails ? Status(StatusCode::kIo, "injected failure of a copy") : Status::Ok();
}

Status ReferenceBackend::TransferCells(const LayerKv& from, const LayerKv& to,
                                       std::span<const CellMove> moves) {
  if (from.shape != to.shape || from.k_type != to.k_type || from.v_type != to.v_type) {
    return Broken("transfer: layers");
  }
  for (const CellMove& move : moves) {
    if (!InRange(from, move.from, move.length) || !InRange(to, move.to, move.length)) {
      return Broken("transfer: range");
    }
  }
  const bool fails = Fails(Call::kTransfer);
  for (const CellMove& move : moves) {
    for (std::int32_t i = 0; i < (fails ? move.length / 2 : move.length); ++i) {
      for (int head = 0; head < from.shape.kv_heads; ++head) {
        for (int d = 0; d < from.shape.k_dim; ++d) {
          StoreValue(to.k_type, to.k, KIndex(to, move.to + i, head, d),
                     LoadValue(from.k_type, from.k, KIndex(from, move.from + i, head, d)));
        }
        for (int d = 0; d < from.shape.v_dim && !from.shape.v_in_k; ++d) {
          StoreValue(to.v_type, to.v, VIndex(to, move.to + i, head, d),
                     LoadV(from, move.from + i, head, d));
        }
      }
    }
  }
  return fails ? Status(StatusCode::kIo, "injected failure of a transfer") : Status::Ok();
}

Status ReferenceBackend::CopyValues(const TensorView& from, const TensorView& to) {
  if (from.dims != to.dims) return Broken("values: sizes");
  const bool fails = Fails(Call::kValues);
  const std::int64_t rows = from.dims[1] * from.dims[2] * from.dims[3];
  const auto row_of = [](const TensorView& view, std::int64_t row) {
    return view.data + row % view.dims[1] * view.stride_bytes[1] +
           row / view.dims[1] % view.dims[2] * view.stride_bytes[2] +
           row / (view.dims[1] * view.dims[2]) * view.stride_bytes[3];
  };
  for (std::int64_t row = 0; row < (fails ? rows / 2 : rows); ++row) {
    for (std::int64_t i = 0; i < from.dims[0]; ++i) {
      StoreValue(to.dtype, row_of(to, row), i, LoadValue(from.dtype, row_of(from, row), i));
    }
  }
  return fails ? Status(StatusCode::kIo, "injected failure of a copy of values") : Status::Ok();
}

Status ReferenceBackend::CopyHost(const std::byte* from, std::byte* to, const TensorView& view,
                                  std::size_t bytes) {
  const bool dense = view.dtype == DType::kF32 && view.dims[1] * view.dims[2] * view.dims[3] == 1;
  if (!dense || BytesOf(DType::kF32, view.elements()) != static_cast<std::int64_t>(bytes)) {
    return Broken("host copy: sizes");
  }
  const bool fails = Fails(Call::kTransfer);
  std::copy_n(from, fails ? bytes / 2 : bytes, to);
  return fails ? Status(StatusCode::kIo, "injected failure of a transfer") : Status::Ok();
}

Status ReferenceBackend::CopyToHost(const TensorView& from, std::span<std::byte> to) {
  return CopyHost(from.data, to.data(), from, to.size());
}

Status ReferenceBackend::CopyFromHost(std::span<const std::byte> from, const TensorView& to) {
  return CopyHost(from.data(), to.data, to, from.size());
}

Status ReferenceBackend::ShiftKeys(const LayerKv& layer, std::span<const CellRun> runs,
                                   Position offset, const RopeParams& rope) {
  std::vector<std::int32_t> cells = CellsOf(layer, runs);
  if (cells.empty()) return Broken("shift: cells");
  const bool fails = Fails(Call::kShift);
  if (fails) cells.resize(cells.size() / 2);
  for (const std::int32_t cell : cells) {
    std::vector<float> key = ReadKey(layer, cell);
    for (int head = 0; head < layer.shape.kv_heads; ++head) {
      const std::span<float> one(key.data() + head * layer.shape.k_dim, layer.shape.k_dim);
      RotateKey(one, offset, rope);
      for (int d = 0; d < layer.shape.k_dim; ++d) {
        StoreValue(layer.k_type, layer.k, KIndex(layer, cell, head, d), one[d]);
      }
    }
  }
  return fails ? Status(StatusCode::kIo, "injected failure of a shift") : Status::Ok();
}

Status ReferenceBackend::Attention(const LayerKv& layer, const TensorView& q,
                                   const Visibility& visibility, const AttentionOptions& options,
                                   const TensorView& out) {
  const auto heads = static_cast<int>(q.dims[1]);
  if (q.dims[0] != layer.shape.k_dim || heads % layer.shape.kv_heads != 0) {
    return Broken("attention: shapes");
  }
  for (std::size_t query = 0; query < visibility.positions.size(); ++query) {
    for (int head = 0; head < heads; ++head) {
      const int kv_head = head / (heads / layer.shape.kv_heads);
      std::vector<SeenCell> seen = SeenCells(visibility, query);
      for (SeenCell& cell : seen) {
        for (int d = 0; d < layer.shape.k_dim; ++d) {
          const float key = LoadValue(layer.k_type, layer.k, KIndex(layer, cell.cell, kv_head, d));
          cell.score += static_cast<double>(options.scale) * BatchValue(q, d, head, query) * key;
        }
      }
      const double sum = Weigh(seen, options, head, visibility.positions[query]);
      for (int d = 0; d < layer.shape.v_dim; ++d) {
        double total = 0.0;
        for (const SeenCell& cell : seen) {
          total += cell.score * LoadV(layer, cell.cell, kv_head, d);
        }
        const std::int64_t index =
            (static_cast<std::int64_t>(query) * heads + head) * layer.shape.v_dim + d;
        out.as<float>()[index] = seen.empty() ? 0.0f : static_cast<float>(total / sum);
      }
    }
  }
  return Status::Ok();
}

}  // namespace kvcache::testing
