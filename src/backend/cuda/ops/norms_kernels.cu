#include "backend/cuda/ops/norms_kernels.h"

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/vectors.h"
#include "backend/cuda/ops/virtual_lanes-inl.h"

namespace kvcache::cuda {
namespace {

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
  const int width = static_cast<int>(args.width);
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
KVCACHE_DEVICE void CopyRow(const NormArgs& args, const float* x, std::int64_t begin,
                            std::int64_t end, float* values) {
  if (args.vectors) {
    for (std::int64_t k = begin + 4 * Thread(); k < end; k += 4 * kNormThreads) {
      *reinterpret_cast<Four*>(values + (k - begin)) = *reinterpret_cast<const Four*>(x + k);
    }
    return;
  }
  for (std::int64_t k = begin + Thread(); k < end; k += kNormThreads) values[k - begin] = x[k];
}

template <class Rule>
KVCACHE_DEVICE void ApplyWide(const NormArgs& args, const float* x, float* y, float result) {
  if (args.vectors) {
    for (std::int64_t k = 4 * Thread(); k < args.width; k += 4 * kNormThreads) {
      Four a = *reinterpret_cast<const Four*>(x + k);
      Four w = {};
      if constexpr (Rule::kWeighs) w = *reinterpret_cast<const Four*>(args.weight + k);
      for (int i = 0; i < 4; ++i) a.v[i] = Rule::Apply(a.v[i], w.v[i], result);
      *reinterpret_cast<Four*>(y + k) = a;
    }
    return;
  }
  for (std::int64_t k = Thread(); k < args.width; k += kNormThreads) {
    y[k] = Rule::Apply(x[k], Rule::kWeighs ? args.weight[k] : 0.0f, result);
  }
}

// A block has a row. 64 of its threads are the lanes, which run through shared memory.
template <class Rule>
KVCACHE_DEVICE void WideRow(const NormArgs& args) {
  WideNormMemory& shared = SharedMemory<WideNormMemory>();
  const std::int64_t row = BlockX();
  const float* const x = args.x + row * args.x_stride;
  float lane = 0.0f;
  for (std::int64_t begin = 0; begin < args.width; begin += kWideValues) {
    const std::int64_t end = begin + kWideValues < args.width ? begin + kWideValues : args.width;
    if (begin > 0) BlockBarrier();  // the lanes have read the part before
    CopyRow(args, x, begin, end, shared.values);
    BlockBarrier();
    const int count = static_cast<int>(end - begin);
    if (Thread() < kNormLanes) {
      for (int k = Thread(); k < count; k += kNormLanes) lane = Rule::Sum(lane, shared.values[k]);
    }
  }
  if (Thread() < kNormLanes) shared.lanes[Thread()] = lane;
  BlockBarrier();
  if (Warp() == 0) {
    const float sum = FoldNormLanes(shared.lanes[Lane()], shared.lanes[kWarpThreads + Lane()]);
    if (Lane() == 0) shared.result = Rule::Result(args, sum);
  }
  BlockBarrier();
  const float* const source = args.width <= kWideValues ? shared.values : x;
  ApplyWide<Rule>(args, source, args.y + row * args.y_stride, shared.result);
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
