// The arithmetic of norms, and rows that pass through a block's shared memory.
//
// Included by kernels only.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/norms_kernels.h"
#include "backend/cuda/ops/vectors.h"
#include "backend/cuda/ops/virtual_lanes-inl.h"

namespace kvcache::cuda {

// y = x / rms(x) × weight.
struct RmsNormRule {
  static constexpr bool kWeighs = true;
  KVCACHE_DEVICE static float Sum(float lane, float x) { return Fma(x, x, lane); }
  KVCACHE_DEVICE static float Result(const NormArgs& args, float sum) {
    const float mean = Div(sum, static_cast<float>(args.width));
    return Div(1.0f, Sqrt(Add(mean, args.epsilon)));
  }
  KVCACHE_DEVICE static float Apply(float x, float weight, float factor) {
    return Mul(Mul(x, factor), weight);
  }
};

// What a thread has of a row that shared memory holds: vectors Thread() + i · kNormThreads.
inline constexpr int kThreadVectors = kWideValues / (4 * kNormThreads);

template <class Rule>
KVCACHE_DEVICE Four Applied(Four x, const Four& weight, float result) {
  for (int i = 0; i < 4; ++i) x.v[i] = Rule::Apply(x.v[i], weight.v[i], result);
  return x;
}

// The weights of the thread's vectors, loaded long before they are used. No kernel writes them.
struct WeightsAhead {
  Four vectors[kThreadVectors];

  KVCACHE_DEVICE explicit WeightsAhead(const NormArgs& args) {
    KVCACHE_UNROLL
    for (int i = 0; i < kThreadVectors; ++i) {
      const int k = 4 * (Thread() + i * kNormThreads);
      vectors[i] = {};
      if (k < args.width) vectors[i] = LoadConstant(reinterpret_cast<const Four*>(args.weight + k));
    }
  }
};

// Returns what Rule makes of the sum of a row's lanes, which threads 0 to 63 have.
template <class Rule>
KVCACHE_DEVICE float FoldRow(const NormArgs& args, float lane, WideNormMemory& shared) {
  if (Thread() < kNormLanes) shared.lanes[Thread()] = lane;
  BlockBarrier();
  if (Warp() == 0) {
    const float sum = FoldNormLanes(shared.lanes[Lane()], shared.lanes[kWarpThreads + Lane()]);
    if (Lane() == 0) shared.result = Rule::Result(args, sum);
  }
  BlockBarrier();
  return shared.result;
}

}  // namespace kvcache::cuda
