#include "model/layer_memory.h"

#include <numeric>

namespace kvcache {
namespace {

std::int64_t BytesOfCell(const KvShape& kv, DType k_type, DType v_type) {
  const LayerKv cell{.shape = kv, .k_type = k_type, .v_type = v_type, .cells = 1};
  return cell.KBytes() + cell.VBytes();
}

}  // namespace

std::string_view NameOf(LayerMemory::Kind kind) {
  switch (kind) {
    case LayerMemory::Kind::kFull: return "full";
    case LayerMemory::Kind::kSliding: return "sliding";
    case LayerMemory::Kind::kChunked: return "chunked";
    case LayerMemory::Kind::kRecurrent: return "recurrent";
    case LayerMemory::Kind::kCross: return "cross";
  }
  return "?";
}

std::int64_t BytesPerToken(const LayerMemory& layer, DType k_type, DType v_type) {
  const bool grows =
      layer.kind == LayerMemory::Kind::kFull || layer.kind == LayerMemory::Kind::kChunked;
  return grows ? BytesOfCell(layer.kv, k_type, v_type) : 0;
}

std::int64_t BytesPerSequence(const LayerMemory& layer, DType k_type, DType v_type) {
  switch (layer.kind) {
    case LayerMemory::Kind::kSliding: return layer.kept * BytesOfCell(layer.kv, k_type, v_type);
    case LayerMemory::Kind::kRecurrent: return BytesOf(DType::kF32, layer.state_values);
    default: return 0;
  }
}

std::int64_t BytesPerToken(std::span<const LayerMemory> layers, DType k_type, DType v_type) {
  return std::accumulate(layers.begin(), layers.end(), std::int64_t{0},
                         [&](std::int64_t sum, const LayerMemory& layer) {
                           return sum + BytesPerToken(layer, k_type, v_type);
                         });
}

std::int64_t BytesPerSequence(std::span<const LayerMemory> layers, DType k_type, DType v_type) {
  return std::accumulate(layers.begin(), layers.end(), std::int64_t{0},
                         [&](std::int64_t sum, const LayerMemory& layer) {
                           return sum + BytesPerSequence(layer, k_type, v_type);
                         });
}

}  // namespace kvcache
