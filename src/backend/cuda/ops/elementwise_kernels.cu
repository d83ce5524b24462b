#include "backend/cuda/ops/elementwise_kernels.h"

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/activation-inl.h"
#include "backend/cuda/ops/vectors.h"
#include "base/arithmetic/activations.h"

namespace kvcache::cuda {
namespace {

// x[i] = f(x[i], y[i]) for the thread's values, `begin` being the first. Without kTwo, y is not read.
template <bool kTwo, class F>
KVCACHE_DEVICE void Update(float* x, const float* y, std::int64_t begin, std::int64_t end,
                           bool vectors, const F& f) {
  if (begin >= end) return;
  if (vectors && begin + kElementValues <= end) {
    Four& at = *reinterpret_cast<Four*>(x + begin);
    Four a = at;
    Four b = {};
    if constexpr (kTwo) b = *reinterpret_cast<const Four*>(y + begin);
    for (int i = 0; i < 4; ++i) a.v[i] = f(a.v[i], b.v[i]);
    at = a;
    return;
  }
  for (std::int64_t i = begin; i < end && i < begin + kElementValues; ++i) {
    x[i] = f(x[i], kTwo ? y[i] : 0.0f);
  }
}

template <bool kTwo, class F>
KVCACHE_DEVICE void UpdateElements(const Elements& e, const F& f) {
  const std::int64_t begin = BlockX() * kElementBlock + Thread() * kElementValues;
  Update<kTwo>(e.x, e.y, begin, e.values, e.vectors, f);
}

// The values that a thread has of its block's column.
template <bool kTwo, class F>
KVCACHE_DEVICE void UpdateColumn(const ColumnArgs& args, std::int64_t column, const float* y,
                                 const F& f) {
  const std::int64_t block = BlockX() - column * args.blocks;
  const std::int64_t begin = block * kElementBlock + Thread() * kElementValues;
  Update<kTwo>(args.x + column * args.stride, y, begin, args.width, args.vectors, f);
}

}  // namespace

KVCACHE_KERNEL(add_values, ElementArgs<NoParams>, kElementThreads) {
  UpdateElements<true>(args.elements, [](float x, float y) { return Add(x, y); });
}

KVCACHE_KERNEL(multiply_values, ElementArgs<NoParams>, kElementThreads) {
  UpdateElements<true>(args.elements, [](float x, float y) { return Mul(x, y); });
}

KVCACHE_KERNEL(scale_values, ElementArgs<ScaleParams>, kElementThreads) {
  const float factor = args.params.factor;
  UpdateElements<false>(args.elements, [=](float x, float) { return Mul(factor, x); });
}

KVCACHE_KERNEL(gate_values, ElementArgs<ActivationParams>, kElementThreads) {
  WithActivation(args.params.activation, [&](const auto& activation) {
    UpdateElements<true>(args.elements,
                         [&](float gate, float up) { return Mul(activation(gate), up); });
  });
}

KVCACHE_KERNEL(activate_values, ElementArgs<ActivationParams>, kElementThreads) {
  WithActivation(args.params.activation, [&](const auto& activation) {
    UpdateElements<false>(args.elements, [&](float x, float) { return activation(x); });
  });
}

KVCACHE_KERNEL(gate_clamped, ElementArgs<GateClampedParams>, kElementThreads) {
  const GateClampedParams p = args.params;
  UpdateElements<true>(args.elements, [=](float gate, float up) {
    return arithmetic::GateClamped(gate, up, p.alpha, p.limit);
  });
}

KVCACHE_KERNEL(soft_cap, ElementArgs<SoftCapParams>, kElementThreads) {
  const float cap = args.params.cap;
  UpdateElements<false>(args.elements, [=](float x, float) { return arithmetic::SoftCap(x, cap); });
}

KVCACHE_KERNEL(xielu, ElementArgs<XieluParams>, kElementThreads) {
  const XieluParams p = args.params;
  UpdateElements<false>(args.elements, [=](float x, float) {
    return arithmetic::Xielu(x, p.alpha_positive, p.alpha_negative, p.beta, p.epsilon);
  });
}

KVCACHE_KERNEL(add_bias, ColumnArgs, kElementThreads) {
  UpdateColumn<true>(args, BlockX() / args.blocks, args.by,
                     [](float x, float bias) { return Add(x, bias); });
}

KVCACHE_KERNEL(scale_columns, ColumnArgs, kElementThreads) {
  const std::int32_t column = BlockX() / args.blocks;
  const float factor = args.by[args.which != nullptr ? args.which[column] : column];
  UpdateColumn<false>(args, column, nullptr, [=](float x, float) { return Mul(factor, x); });
}

}  // namespace kvcache::cuda
