// Defines DecodeKernels of decode/types-inl.h, for every target.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KERNELS_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KERNELS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KERNELS_INL_H_
#endif

#include "backend/cpu/attention/decode/keys-inl.h"
#include "backend/cpu/attention/decode/types-inl.h"
#include "backend/cpu/attention/decode/values-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

template <DType kType>
void DecodeKernels<kType>::Score(const LayerKv& layer, int kv_head, const ScoredRows& rows,
                                 int count) {
  switch (count) {
    case 1: return ScoreSegments<kType, 1>(layer, kv_head, rows);
    case 2: return ScoreSegments<kType, 2>(layer, kv_head, rows);
    case 3: return ScoreSegments<kType, 3>(layer, kv_head, rows);
    case 4: return ScoreSegments<kType, 4>(layer, kv_head, rows);
    default: return ScoreSegments<kType, kRowsAtOnce>(layer, kv_head, rows);
  }
}

template <DType kType, int R>
void WeightRows(const LayerKv& layer, int kv_head, const WeightedRows& rows,
                [[maybe_unused]] float* workspace, Prefetcher* prefetcher) {
  if constexpr (IsKvBlockType(kType)) {
    WeightBlockSegments<kType, R>(layer, kv_head, rows, workspace, &prefetcher->split);
  } else {
    WeightSegments<kType, R>(layer, kv_head, rows, prefetcher->values);
  }
}

template <DType kType>
void DecodeKernels<kType>::Weight(const LayerKv& layer, int kv_head, const WeightedRows& rows,
                                  int count, float* workspace, Prefetcher* prefetcher) {
  switch (count) {
    case 1: return WeightRows<kType, 1>(layer, kv_head, rows, workspace, prefetcher);
    case 2: return WeightRows<kType, 2>(layer, kv_head, rows, workspace, prefetcher);
    case 3: return WeightRows<kType, 3>(layer, kv_head, rows, workspace, prefetcher);
    case 4: return WeightRows<kType, 4>(layer, kv_head, rows, workspace, prefetcher);
    default: return WeightRows<kType, kRowsAtOnce>(layer, kv_head, rows, workspace, prefetcher);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
