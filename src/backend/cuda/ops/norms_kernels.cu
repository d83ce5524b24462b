#include "backend/cuda/ops/norms_kernels.h"

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/norms-inl.h"

namespace kvcache::cuda {
namespace {

// y = x - mean(x).
struct CenterRule {
  static constexpr bool kWeighs = false;
  KVCACHE_DEVICE static float Sum(float lane, float x) { return Add(lane, x); }
  KVCACHE_DEVICE static float Result(const NormArgs& args, float sum) {
    return Div(sum, static_cast<float>(args.width));
  }
  KVCACHE_DEVICE static float Apply(float x, float /*weight*/, float mean) { return Sub(x, mean); }
};

// A warp has a row, whose values stay in registers.
template <class Rule>
KVCACHE_DEVICE void NarrowRow(const NormArgs& args) {
  constexpr int kValues = kNarrowWidth / kWarpThreads;
  const std::int64_t row = std::int64_t{BlockX()} * kNarrowRows + Warp();
  if (row >= args.rows) return;
  const float* const x = args.x + row * args.x_stride;
  float* const y = args.y + row * args.y_stride;
  const int width = args.width;
  float values[kValues];
  for (int i = 0; i < kValues; ++i) {
    const int k = i * kWarpThreads + Lane();
    values[i] = k < width ? x[k] : 0.0f;
  }
  float lanes[2] = {0.0f, 0.0f};
  for (int i = 0; i < kValues; ++i) {
    if (i * kWarpThreads + Lane() < width) lanes[i % 2] = Rule::Sum(lanes[i % 2], values[i]);
  }
  const float result = Rule::Result(args, FoldNormLanes(lanes[0], lanes[1]));
  for (int i = 0; i < kValues; ++i) {
    const int k = i * kWarpThreads + Lane();
    if (k < width) y[k] = Rule::Apply(values[i], Rule::kWeighs ? args.weight[k] : 0.0f, result);
  }
}

// Copies values [begin, end) of a row to shared memory.
KVCACHE_DEVICE void CopyRow(const NormArgs& args, const float* x, int begin, int end,
                            float* values) {
  if (args.vectors) {
    for (int k = begin + 4 * Thread(); k < end; k += 4 * kNormThreads) {
      *reinterpret_cast<Four*>(values + (k - begin)) = *reinterpret_cast<const Four*>(x + k);
    }
    return;
  }
  for (int k = begin + Thread(); k < end; k += kNormThreads) values[k - begin] = x[k];
}

// A row of whole vectors, which is in shared memory.
template <class Rule>
KVCACHE_DEVICE void ApplyFromShared(const NormArgs& args, const WeightsAhead& weights,
                                    const WideNormMemory& shared, float* y) {
  KVCACHE_UNROLL
  for (int i = 0; i < kThreadVectors; ++i) {
    const int k = 4 * (Thread() + i * kNormThreads);
    if (k >= args.width) return;
    const Four x = *reinterpret_cast<const Four*>(shared.values + k);
    *reinterpret_cast<Four*>(y + k) = Applied<Rule>(x, weights.vectors[i], shared.result);
  }
}

// Any row, from global memory.
template <class Rule>
KVCACHE_DEVICE void ApplyWide(const NormArgs& args, const float* x, float* y, float result) {
  if (args.vectors) {
    for (int k = 4 * Thread(); k < args.width; k += 4 * kNormThreads) {
      const Four values = *reinterpret_cast<const Four*>(x + k);
      Four weight = {};
      if constexpr (Rule::kWeighs) weight = *reinterpret_cast<const Four*>(args.weight + k);
      *reinterpret_cast<Four*>(y + k) = Applied<Rule>(values, weight, result);
    }
    return;
  }
  for (int k = Thread(); k < args.width; k += kNormThreads) {
    y[k] = Rule::Apply(x[k], Rule::kWeighs ? args.weight[k] : 0.0f, result);
  }
}

// Returns what Rule makes of the sum over the block's row, which passes through shared memory: 64 of its
// threads are the lanes.
template <class Rule>
KVCACHE_DEVICE float WideResult(const NormArgs& args, const float* x, WideNormMemory& shared) {
  float lane = 0.0f;
  for (int begin = 0; begin < args.width; begin += kWideValues) {
    const int end = args.width - begin > kWideValues ? begin + kWideValues : args.width;
    if (begin > 0) BlockBarrier();  // the lanes have read the part before
    CopyRow(args, x, begin, end, shared.values);
    BlockBarrier();
    const int count = end - begin;
    if (Thread() < kNormLanes) {
      for (int k = Thread(); k < count; k += kNormLanes) lane = Rule::Sum(lane, shared.values[k]);
    }
  }
  return FoldRow<Rule>(args, lane, shared);
}

// A block has a row.
template <class Rule>
KVCACHE_DEVICE void WideRow(const NormArgs& args) {
  WideNormMemory& shared = SharedMemory<WideNormMemory>();
  const std::int64_t row = BlockX();
  const float* const x = args.x + row * args.x_stride;
  float* const y = args.y + row * args.y_stride;
  if constexpr (Rule::kWeighs) {
    if (args.vectors && args.width <= kWideValues) {
      const WeightsAhead weights(args);
      WideResult<Rule>(args, x, shared);
      return ApplyFromShared<Rule>(args, weights, shared, y);
    }
  }
  ApplyWide<Rule>(args, x, y, WideResult<Rule>(args, x, shared));
}

}  // namespace

KVCACHE_KERNEL(norm_narrow, NormArgs, kNormThreads) {
  NarrowRow<RmsNormRule>(args);
}

KVCACHE_KERNEL(center_narrow, NormArgs, kNormThreads) {
  NarrowRow<CenterRule>(args);
}

KVCACHE_KERNEL(norm_wide, NormArgs, kNormThreads) {
  WideRow<RmsNormRule>(args);
}

KVCACHE_KERNEL(center_wide, NormArgs, kNormThreads) {
  WideRow<CenterRule>(args);
}

}  // namespace kvcache::cuda
