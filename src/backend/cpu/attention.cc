#include "backend/cpu/attention.h"

#include "backend/cpu/kv_kernels.h"

namespace kvcache::cpu {

Status Attention(ThreadPool&, Scratch&, const LayerKv& layer, const TensorView&, const Visibility&,
                 const AttentionOptions&, const TensorView&) {
  return CheckKvTypes(layer.k_type, layer.v_type, layer.layout);
}

}  // namespace kvcache::cpu
