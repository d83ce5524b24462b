#include "model/layer_memory.h"

#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

std::int64_t BytesOfCell(const KvShape& kv, DType k_type, DType v_type) {
  const LayerKv cell{.shape = kv, .k_type = k_type, .v_type = v_type, .cells = 1};
  return cell.KBytes() + cell.VBytes();
}

Status Refused(const LayerMemory& layer, char part, DType type, const std::string& why,
               std::string_view others = "f16, bf16 or f32 holds them") {
  return Unsupported(StrCat("layer ", layer.layer, " ", why, " in a cache with ", part, " in ",
                            InfoOf(type).name, "; ", part, " in ", others));
}

Status CheckRow(const LayerMemory& layer, char part, DType type, int dim) {
  const int block = InfoOf(type).block_size;
  if (dim % block == 0) return Status::Ok();
  return Refused(layer, part, type,
                 StrCat("has heads of ", dim, " values, which are not whole blocks of ", block));
}

}  // namespace

Status CheckCacheTypes(std::span<const LayerMemory> layers, DType k_type, DType v_type) {
  for (const LayerMemory& layer : layers) {
    if (layer.kind == LayerMemory::Kind::kRecurrent) continue;
    if (layer.kv.v_in_k && InfoOf(k_type).block_size > 1 && k_type != DType::kQ8_0) {
      return Refused(layer, 'K', k_type, "cannot have its values within its keys",
                     "q8_0, f16, bf16 or f32 holds them");
    }
    KVCACHE_RETURN_IF_ERROR(CheckRow(layer, 'K', k_type, layer.kv.k_dim));
    const DType of_values = layer.kv.v_in_k ? k_type : v_type;
    KVCACHE_RETURN_IF_ERROR(
        CheckRow(layer, layer.kv.v_in_k ? 'K' : 'V', of_values, layer.kv.v_dim));
  }
  return Status::Ok();
}

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
    case LayerMemory::Kind::kSliding:
      return layer.retained_tokens * BytesOfCell(layer.kv, k_type, v_type);
    case LayerMemory::Kind::kRecurrent: return BytesOf(DType::kF32, layer.state_values);
    default: return 0;
  }
}

std::int64_t BytesPerToken(std::span<const LayerMemory> layers, DType k_type, DType v_type) {
  std::int64_t sum = 0;
  for (const LayerMemory& layer : layers) sum += BytesPerToken(layer, k_type, v_type);
  return sum;
}

std::int64_t BytesPerSequence(std::span<const LayerMemory> layers, DType k_type, DType v_type) {
  std::int64_t sum = 0;
  for (const LayerMemory& layer : layers) sum += BytesPerSequence(layer, k_type, v_type);
  return sum;
}

}  // namespace kvcache
