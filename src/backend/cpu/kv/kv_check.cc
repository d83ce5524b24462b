// The argument checks of the kernels over a cache's cells.
#include <string>

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/common/kv_storage.h"
#include "backend/cpu/kv/kv_kernels.h"

namespace kvcache::cpu {

namespace {

std::string TypesText(DType k_type, DType v_type) {
  return "K of type " + std::string(InfoOf(k_type).name) + " and V of type " +
         std::string(InfoOf(v_type).name);
}

// A head's key and value have to be whole blocks of 32 values. A key of a block type is stored
// transformed, so it cannot contain the value.
Status CheckBlocks(const LayerKv& layer) {
  const KvShape& shape = layer.shape;
  const bool k_blocks = IsKvBlockType(layer.k_type);
  const bool v_blocks = IsKvBlockType(layer.v_type);
  if (k_blocks && shape.v_in_k) {
    return Status(StatusCode::kUnsupported,
                  "K of type " + std::string(InfoOf(layer.k_type).name) +
                      " cannot contain V; use f32, f16 or bf16 for models whose V is in K");
  }
  if ((k_blocks && shape.k_dim % kKvBlock != 0) || (v_blocks && shape.v_dim % kKvBlock != 0)) {
    return Status(StatusCode::kUnsupported,
                  TypesText(layer.k_type, layer.v_type) + ": head sizes are " +
                      std::to_string(shape.k_dim) + " and " + std::to_string(shape.v_dim) +
                      "; must be multiples of " + std::to_string(kKvBlock) + " for block types");
  }
  return Status::Ok();
}

}  // namespace

// Float types work in every layout, block types only in the tiled one, which is the fast one for
// all (preferred_cache_config).
Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) {
  const auto served = [](DType type) { return IsKvType(type) || IsKvBlockType(type); };
  if (!served(k_type) || !served(v_type)) {
    return Status(StatusCode::kUnsupported, "the CPU has no kernels for " +
                                                TypesText(k_type, v_type) +
                                                "; it has f32, f16, bf16, q8_0 and q4_0");
  }
  if (layout != KvLayout::kTiled && (IsKvBlockType(k_type) || IsKvBlockType(v_type))) {
    return Status(
        StatusCode::kUnsupported,
        TypesText(k_type, v_type) + ": the CPU supports block types only in the tiled layout");
  }
  return Status::Ok();
}

Status CheckLayer(const LayerKv& layer) {
  KVCACHE_RETURN_IF_ERROR(CheckKvTypes(layer.k_type, layer.v_type, layer.layout));
  const KvShape& shape = layer.shape;
  const bool tiled = layer.layout == KvLayout::kTiled;
  if (shape.kv_heads < 1 || shape.k_dim < 1 || shape.v_dim < 1 || layer.cells < 0 ||
      (tiled && layer.cells % kCellTile != 0)) {
    return Status(StatusCode::kInvalidArgument,
                  "layer of " + std::to_string(layer.cells) + " cells with " +
                      std::to_string(shape.kv_heads) + " kv_heads of " +
                      std::to_string(shape.k_dim) + " and " + std::to_string(shape.v_dim) +
                      " values; sizes must be at least 1, and tiled cells a multiple of " +
                      std::to_string(kCellTile));
  }
  KVCACHE_RETURN_IF_ERROR(CheckBlocks(layer));
  if (shape.v_in_k &&
      (shape.v_dim > shape.k_dim || layer.v_type != layer.k_type || layer.v_transposed)) {
    return Status(StatusCode::kInvalidArgument,
                  "V in K: v_dim is " + std::to_string(shape.v_dim) + ", k_dim is " +
                      std::to_string(shape.k_dim) +
                      "; v_dim must be at most k_dim, with one type for both and V not transposed");
  }
  if (tiled && layer.v_transposed) {
    return Status(StatusCode::kInvalidArgument, "transposed V needs the plain layout");
  }
  if (layer.cells > 0 && (layer.k == nullptr || (layer.v == nullptr && !shape.v_in_k))) {
    return Status(StatusCode::kInvalidArgument,
                  "layer of " + std::to_string(layer.cells) + " cells has no memory");
  }
  return Status::Ok();
}

Status CheckCells(const LayerKv& layer, const char* what, std::int64_t cell, std::int64_t length) {
  if (cell >= 0 && length >= 0 && cell + length <= layer.cells) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, std::string(what) + ": " + std::to_string(length) +
                                                  " cells from " + std::to_string(cell) +
                                                  " are not within the layer's " +
                                                  std::to_string(layer.cells));
}

}  // namespace kvcache::cpu
