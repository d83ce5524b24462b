#include "backend/cpu/kv_kernels.h"

namespace kvcache::cpu {

Status CheckKvTypes(DType, DType, KvLayout) {
  return Status(StatusCode::kUnsupported, "K and V kernels are not built in");
}

Status StoreKv(ThreadPool&, Scratch&, const LayerKv& layer, const TensorView&, const TensorView&,
               std::span<const CellRun>) {
  return CheckKvTypes(layer.k_type, layer.v_type, layer.layout);
}

Status CopyCells(ThreadPool&, const LayerKv& layer, std::span<const CellMove>) {
  return CheckKvTypes(layer.k_type, layer.v_type, layer.layout);
}

Status ShiftKeys(ThreadPool&, Scratch&, const LayerKv& layer, std::span<const CellRun>, Position,
                 const RopeParams&) {
  return CheckKvTypes(layer.k_type, layer.v_type, layer.layout);
}

}  // namespace kvcache::cpu
