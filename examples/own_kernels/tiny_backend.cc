#include "tiny_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

namespace example {
namespace {

using kvcache::DType;
using kvcache::LayerKv;
using kvcache::Result;
using kvcache::Status;
using kvcache::StatusCode;
using kvcache::TensorView;

class HostBuffer : public kvcache::Buffer {
 public:
  explicit HostBuffer(std::size_t size_bytes) : lines_((size_bytes + 63) / 64), size_(size_bytes) {}
  std::byte* data() override { return lines_.empty() ? nullptr : lines_.front().bytes; }
  std::size_t size_bytes() const override { return size_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::vector<Line> lines_;
  std::size_t size_;
};

// Returns value [a, b, c] of a view of f32.
float& At(const TensorView& view, std::int64_t a, std::int64_t b, std::int64_t c) {
  return *reinterpret_cast<float*>(view.data + a * view.stride_bytes[0] + b * view.stride_bytes[1] +
                                   c * view.stride_bytes[2]);
}

// Returns one cell's key or value: [heads][dim] floats.
float* CellAt(std::byte* base, std::int64_t cell, int heads, int dim) {
  return reinterpret_cast<float*>(base) + cell * heads * dim;
}

}  // namespace

Status TinyBackend::CheckKvTypes(DType k_type, DType v_type, kvcache::KvLayout layout) const {
  if (k_type == DType::kF32 && v_type == DType::kF32 && layout == kvcache::KvLayout::kPlain) {
    return Status::Ok();
  }
  return {StatusCode::kUnsupported, "the tiny backend supports only f32 in the plain layout"};
}

Result<std::unique_ptr<kvcache::Buffer>> TinyBackend::Allocate(std::size_t size_bytes) {
  try {
    return std::unique_ptr<kvcache::Buffer>(std::make_unique<HostBuffer>(size_bytes));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, std::to_string(size_bytes) + " bytes");
  }
}

Status TinyBackend::StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                            std::span<const kvcache::CellRun> cells) {
  const auto& [heads, k_dim, v_dim, v_in_k] = layer.shape;
  if (v_in_k) return {StatusCode::kUnsupported, "the tiny backend does not support V in K"};
  std::int64_t token = 0;
  for (const kvcache::CellRun& run : cells) {
    for (std::int32_t i = 0; i < run.length; ++i, ++token) {
      float* key = CellAt(layer.k, run.cell + i, heads, k_dim);
      float* value = CellAt(layer.v, run.cell + i, heads, v_dim);
      for (int head = 0; head < heads; ++head) {
        for (int d = 0; d < k_dim; ++d) *key++ = At(k, d, head, token);
        for (int d = 0; d < v_dim; ++d) *value++ = At(v, d, head, token);
      }
    }
  }
  return Status::Ok();
}

Status TinyBackend::CopyCells(const LayerKv& layer, std::span<const kvcache::CellMove> moves) {
  const auto& [heads, k_dim, v_dim, v_in_k] = layer.shape;
  for (const kvcache::CellMove& move : moves) {
    std::copy_n(CellAt(layer.k, move.from, heads, k_dim), move.length * heads * k_dim,
                CellAt(layer.k, move.to, heads, k_dim));
    std::copy_n(CellAt(layer.v, move.from, heads, v_dim), move.length * heads * v_dim,
                CellAt(layer.v, move.to, heads, v_dim));
  }
  return Status::Ok();
}

// Only recurrent states need CopyValues. This model has none; it is here for completeness.
Status TinyBackend::CopyValues(const TensorView& from, const TensorView& to) {
  if (from.dtype != DType::kF32 || to.dtype != DType::kF32 || from.dims != to.dims) {
    return {StatusCode::kUnsupported, "the tiny backend copies only f32 to f32 of the same size"};
  }
  for (std::int64_t d = 0; d < from.dims[3]; ++d) {
    TensorView source = from;
    TensorView target = to;
    source.data += d * from.stride_bytes[3];
    target.data += d * to.stride_bytes[3];
    for (std::int64_t c = 0; c < from.dims[2]; ++c) {
      for (std::int64_t b = 0; b < from.dims[1]; ++b) {
        std::copy_n(&At(source, 0, b, c), from.dims[0], &At(target, 0, b, c));
      }
    }
  }
  return Status::Ok();
}

Status TinyBackend::ShiftKeys(const LayerKv& layer, std::span<const kvcache::CellRun> cells,
                              kvcache::Position offset, const kvcache::RopeParams& rope) {
  const auto& [heads, k_dim, v_dim, v_in_k] = layer.shape;
  for (const kvcache::CellRun& run : cells) {
    for (std::int32_t i = 0; i < run.length * heads; ++i) {
      float* key = CellAt(layer.k, run.cell, heads, k_dim) + i * k_dim;
      for (int pair = 0; pair < rope.dims / 2; ++pair) {
        const float angle = static_cast<float>(offset) * rope.inv_freq[pair];
        const float x = key[2 * pair];
        const float y = key[2 * pair + 1];
        key[2 * pair] = x * std::cos(angle) - y * std::sin(angle);
        key[2 * pair + 1] = x * std::sin(angle) + y * std::cos(angle);
      }
    }
  }
  return Status::Ok();
}

Status TinyBackend::Attention(const LayerKv&, const TensorView&, const kvcache::Visibility&,
                              const kvcache::AttentionOptions&, const TensorView&) {
  return {StatusCode::kUnsupported, "the tiny backend has no fused attention; use Get()"};
}

void Attend(const TensorView& q, const kvcache::DenseKv& history, float scale,
            const TensorView& out) {
  const std::int64_t cells = history.k.dims[2];
  const std::int64_t group = q.dims[1] / history.k.dims[1];
  std::vector<float> weights(cells);
  for (std::int64_t query = 0; query < q.dims[2]; ++query) {
    for (std::int64_t head = 0; head < q.dims[1]; ++head) {
      float largest = -INFINITY;
      for (std::int64_t cell = 0; cell < cells; ++cell) {
        float score = 0.0f;
        for (std::int64_t d = 0; d < q.dims[0]; ++d) {
          score += At(q, d, head, query) * At(history.k, d, head / group, cell);
        }
        weights[cell] = scale * score + At(history.mask, cell, query, 0);
        largest = std::max(largest, weights[cell]);
      }
      float sum = 0.0f;
      for (float& weight : weights) sum += weight = std::exp(weight - largest);
      for (std::int64_t d = 0; d < out.dims[0]; ++d) {
        float total = 0.0f;
        for (std::int64_t cell = 0; cell < cells; ++cell) {
          // Skip hidden tokens: 0 × infinity would be NaN.
          if (weights[cell] > 0.0f) {
            total += weights[cell] * At(history.v, d, head / group, cell);
          }
        }
        At(out, d, head, query) = total / sum;
      }
    }
  }
}

}  // namespace example
