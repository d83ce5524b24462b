#include "backend/cpu/kv/kv_check.h"

#include <string>
#include <utility>

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/common/kv_storage.h"

namespace kvcache::cpu {
namespace {

std::string TypesText(DType k_type, DType v_type) {
  return "K of type " + std::string(InfoOf(k_type).name) + " and V of type " +
         std::string(InfoOf(v_type).name);
}

// A head's key and value have to be whole blocks of 32 values. Only keys of q8_0 can contain the value
// (kv_blocks.h).
Status CheckBlocks(const LayerKv& layer) {
  const KvShape& shape = layer.shape;
  const bool k_blocks = IsKvBlockType(layer.k_type);
  const bool v_blocks = IsKvBlockType(layer.v_type);
  if (k_blocks && shape.v_in_k && !HoldsLatents(layer)) {
    return Status(StatusCode::kUnsupported,
                  "K of type " + std::string(InfoOf(layer.k_type).name) +
                      " cannot contain V; use f32, f16, bf16 or q8_0 for models whose V is in K");
  }
  if ((k_blocks && shape.k_dim % kKvBlock != 0) || (v_blocks && shape.v_dim % kKvBlock != 0)) {
    return Status(StatusCode::kUnsupported,
                  TypesText(layer.k_type, layer.v_type) + ": head sizes are " +
                      std::to_string(shape.k_dim) + " and " + std::to_string(shape.v_dim) +
                      "; must be multiples of " + std::to_string(kKvBlock) + " for block types");
  }
  return Status::Ok();
}

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, "store: " + std::move(message));
}

std::string Dims(const TensorView& view) {
  return "[" + std::to_string(view.dims[0]) + ", " + std::to_string(view.dims[1]) + ", " +
         std::to_string(view.dims[2]) + "]";
}

Status CheckInput(const char* name, const TensorView& view, std::int64_t head_dim,
                  std::int64_t kv_heads, std::int64_t batch) {
  if (view.dims[0] != head_dim || view.dims[1] != kv_heads || view.dims[2] != batch ||
      view.dims[3] != 1) {
    return Invalid(std::string(name) + " is " + Dims(view) + "; must be [" +
                   std::to_string(head_dim) + ", " + std::to_string(kv_heads) + ", " +
                   std::to_string(batch) + "] for these cells");
  }
  if (view.dtype != DType::kF32 || view.stride_bytes[0] != std::int64_t{sizeof(float)}) {
    return Invalid(std::string(name) + " is of type " + std::string(InfoOf(view.dtype).name) +
                   " with " + std::to_string(view.stride_bytes[0]) +
                   " bytes between values; must be f32 with 4");
  }
  return Status::Ok();
}

Status CheckInKeys(const LayerKv& layer, const TensorView& v, std::int64_t batch) {
  if (AreInKeys(v) && v.dims[0] == layer.shape.v_dim && v.dims[1] == layer.shape.kv_heads &&
      v.dims[2] == batch) {
    return Status::Ok();
  }
  return Invalid("v is " + Dims(v) + (AreInKeys(v) ? " in k" : "") + "; must be [" +
                 std::to_string(layer.shape.v_dim) + ", " + std::to_string(layer.shape.kv_heads) +
                 ", " + std::to_string(batch) + "] in k for these cells");
}

Status CheckAlike(const LayerKv& from, const LayerKv& to) {
  if (from.shape == to.shape && from.k_type == to.k_type && from.v_type == to.v_type) {
    return Status::Ok();
  }
  const auto text = [](const LayerKv& layer) {
    return std::to_string(layer.shape.kv_heads) + " heads of " + std::to_string(layer.shape.k_dim) +
           " " + std::string(InfoOf(layer.k_type).name) + " (K) and " +
           std::to_string(layer.shape.v_dim) + " " + std::string(InfoOf(layer.v_type).name) +
           " (V) values";
  };
  return Status(StatusCode::kInvalidArgument,
                "copy from a layer of " + text(from) + " to one of " + text(to));
}

}  // namespace

// Float types work in every layout, block types only in the tiled one, which is the fast one for
// all (preferred_cache_config).
Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) {
  const auto served = [](DType type) { return IsKvType(type) || IsKvBlockType(type); };
  if (!served(k_type) || !served(v_type)) {
    return Status(StatusCode::kUnsupported, "no kernels for " + TypesText(k_type, v_type) +
                                                "; types must be f32, f16, bf16, q8_0 or q4_0");
  }
  if (layout != KvLayout::kTiled && (IsKvBlockType(k_type) || IsKvBlockType(v_type))) {
    return Status(StatusCode::kUnsupported,
                  TypesText(k_type, v_type) + ": block types need the tiled layout");
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

Status CheckStore(const LayerKv& layer, const TensorView& k, const TensorView& v,
                  std::span<const CellRun> cells) {
  KVCACHE_RETURN_IF_ERROR(CheckLayer(layer));
  std::int64_t batch = 0;
  for (const CellRun& run : cells) {
    KVCACHE_RETURN_IF_ERROR(CheckCells(layer, "store", run.cell, run.length));
    batch += run.length;
  }
  KVCACHE_RETURN_IF_ERROR(CheckInput("k", k, layer.shape.k_dim, layer.shape.kv_heads, batch));
  if (layer.shape.v_in_k) return CheckInKeys(layer, v, batch);
  return CheckInput("v", v, layer.shape.v_dim, layer.shape.kv_heads, batch);
}

Status CheckTransfer(const LayerKv& from, const LayerKv& to, std::span<const CellMove> moves) {
  KVCACHE_RETURN_IF_ERROR(CheckLayer(from));
  KVCACHE_RETURN_IF_ERROR(CheckLayer(to));
  KVCACHE_RETURN_IF_ERROR(CheckAlike(from, to));
  for (const CellMove& move : moves) {
    KVCACHE_RETURN_IF_ERROR(CheckCells(from, "copy from", move.from, move.length));
    KVCACHE_RETURN_IF_ERROR(CheckCells(to, "copy to", move.to, move.length));
  }
  return Status::Ok();
}

Status CheckShift(const LayerKv& layer, std::span<const CellRun> cells, const RopeParams& rope) {
  KVCACHE_RETURN_IF_ERROR(CheckLayer(layer));
  if (rope.dims < 0 || rope.dims % 2 != 0 || rope.first < 0 ||
      rope.first + std::int64_t{rope.dims} > layer.shape.k_dim ||
      rope.inv_freq.size() != static_cast<std::size_t>(rope.dims) / 2) {
    return Status(StatusCode::kInvalidArgument,
                  "shift: rope has " + std::to_string(rope.dims) + " dims and " +
                      std::to_string(rope.inv_freq.size()) +
                      " frequencies; dims must be even and at most k_dim (" +
                      std::to_string(layer.shape.k_dim) + "), with one frequency per pair");
  }
  if (layer.shape.v_in_k && rope.dims > 0 && rope.first < layer.shape.v_dim) {
    return Status(StatusCode::kInvalidArgument,
                  "shift: rope begins at value " + std::to_string(rope.first) +
                      " of a key; must be at least " + std::to_string(layer.shape.v_dim) +
                      ", since the values before are V");
  }
  for (const CellRun& run : cells) {
    KVCACHE_RETURN_IF_ERROR(CheckCells(layer, "shift", run.cell, run.length));
  }
  return Status::Ok();
}

}  // namespace kvcache::cpu
