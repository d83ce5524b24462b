#include "backend/cpu/ops/elementwise_kernels.h"

#include <cmath>
#include <cstring>

#include "backend/cpu/simd/targets.h"
#include "tensor/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/ops/elementwise_kernels.cc"
#include "hwy/foreach_target.h"
// After it, so that they compile once per target.
#include "backend/cpu/simd/exp-inl.h"
#include "backend/cpu/simd/simd-inl.h"
#include "backend/cpu/simd/squares-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): one idea, two files

// The last elements of an array, fewer than a vector, use the same instructions as the others: they
// are loaded into a whole vector and stored back in part.
HWY_INLINE VF LoadFirst(const float* p, std::int64_t count) {
  HWY_ALIGN float all[kLanes] = {};
  std::memcpy(all, p, static_cast<std::size_t>(count) * sizeof(float));
  return hn::Load(DF(), all);
}
HWY_INLINE void StoreFirst(VF v, float* p, std::int64_t count) {
  HWY_ALIGN float all[kLanes];
  hn::Store(v, DF(), all);
  std::memcpy(p, all, static_cast<std::size_t>(count) * sizeof(float));
}

// out[i] = f(a[i], b[i]).
template <class F>
HWY_INLINE void Zip(const float* a, const float* b, std::int64_t count, float* out, const F& f) {
  const DF d;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(f(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  }
  if (const std::int64_t left = count - i; left > 0) {
    StoreFirst(f(LoadFirst(a + i, left), LoadFirst(b + i, left)), out + i, left);
  }
}

struct MultiplyOp {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::Mul(a, b); }
};
struct AddOp {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::Add(a, b); }
};
void Multiply(float* x, const float* y, std::int64_t count) {
  Zip(x, y, count, x, MultiplyOp());
}

void Add(float* x, const float* y, std::int64_t count) {
  Zip(x, y, count, x, AddOp());
}

struct TimesOp {
  float factor;
  HWY_INLINE VF operator()(VF x, VF) const { return hn::Mul(hn::Set(DF(), factor), x); }
};
struct AddTimesOp {
  float factor;
  HWY_INLINE VF operator()(VF x, VF y) const { return hn::MulAdd(hn::Set(DF(), factor), x, y); }
};

void Scale(const float* x, float factor, std::int64_t count, float* y) {
  Zip(x, x, count, y, TimesOp{factor});
}

void AddScaled(const float* x, float factor, std::int64_t count, float* y) {
  Zip(x, y, count, y, AddTimesOp{factor});
}

// ---- Activations: base/arithmetic/activations.h has the same sequences. A NaN stays: bounds are the first
// operands of minima and maxima.

// Returns x / (1 + exp(-t)). Below -88 the result is smaller than 1e-36 either way.
HWY_INLINE VF OverOnePlusExp(VF x, VF t) {
  const DF d;
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), BoundedExp(d, hn::Neg(t))));
}

struct SiluOp {
  HWY_INLINE VF operator()(VF x) const { return OverOnePlusExp(x, x); }
};
// (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), without the cancellation.
struct GeluOp {
  HWY_INLINE VF operator()(VF x) const {
    const DF d;
    const VF cubic = hn::Set(d, 0x1.2444f2p-4f);   // 2 sqrt(2/pi) × 0.044715
    const VF linear = hn::Set(d, 0x1.988454p+0f);  // 2 sqrt(2/pi)
    return OverOnePlusExp(x, hn::Mul(x, hn::MulAdd(hn::Mul(x, x), cubic, linear)));
  }
};
struct ReluOp {
  HWY_INLINE VF operator()(VF x) const { return Greater(hn::Zero(DF()), x); }
};
struct ReluSquaredOp {
  HWY_INLINE VF operator()(VF x) const {
    const VF positive = ReluOp()(x);
    return hn::Mul(positive, positive);
  }
};
struct SigmoidOp {
  HWY_INLINE VF operator()(VF x) const { return OverOnePlusExp(hn::Set(DF(), 1.0f), x); }
};

// Calls f with the activation's operation.
template <class F>
HWY_INLINE void WithActivation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kSilu: return f(SiluOp());
    case Activation::kGelu: return f(GeluOp());
    case Activation::kRelu: return f(ReluOp());
    case Activation::kReluSquared: return f(ReluSquaredOp());
    case Activation::kSigmoid: return f(SigmoidOp());
  }
}

template <class Op>
struct GateOp {
  HWY_INLINE VF operator()(VF gate, VF up) const { return hn::Mul(Op()(gate), up); }
};
template <class Op>
struct ActivateOp {
  HWY_INLINE VF operator()(VF x, VF) const { return Op()(x); }
};

void Gate(float* gate, const float* up, std::int64_t count, Activation activation) {
  WithActivation(activation, [&]<class Op>(Op) { Zip(gate, up, count, gate, GateOp<Op>()); });
}

void Activate(float* x, std::int64_t count, Activation activation) {
  WithActivation(activation, [&]<class Op>(Op) { Zip(x, x, count, x, ActivateOp<Op>()); });
}

struct GateClampedOp {
  float alpha;
  float limit;
  HWY_INLINE VF operator()(VF gate, VF up) const {
    const DF d;
    const VF bound = hn::Set(d, limit);
    const VF g = Lesser(bound, gate);
    const VF u = Greater(hn::Neg(bound), Lesser(bound, up));
    const VF opened = OverOnePlusExp(g, hn::Mul(g, hn::Set(d, alpha)));
    return hn::Mul(opened, hn::Add(u, hn::Set(d, 1.0f)));
  }
};

void GateClamped(float* gate, const float* up, std::int64_t count, float alpha, float limit) {
  Zip(gate, up, count, gate, GateClampedOp{alpha, limit});
}

struct SoftCapOp {
  float cap;
  HWY_INLINE VF operator()(VF x, VF) const {
    const DF d;
    const VF bound = hn::Set(d, cap);
    return hn::Mul(bound, cpu::HWY_NAMESPACE::Tanh(d, hn::Div(x, bound)));
  }
};

void SoftCap(float* x, std::int64_t count, float cap) {
  Zip(x, x, count, x, SoftCapOp{cap});
}

struct XieluOp {
  XieluParams params;
  HWY_INLINE VF operator()(VF x, VF) const {
    const DF d;
    const VF linear = hn::Mul(hn::Set(d, params.beta), x);
    const VF square = hn::MulAdd(hn::Mul(hn::Set(d, params.alpha_positive), x), x, linear);
    const VF most = Lesser(hn::Set(d, params.epsilon), x);
    const VF bent = hn::Sub(cpu::HWY_NAMESPACE::Expm1(d, most), x);
    const VF below = hn::MulAdd(hn::Set(d, params.alpha_negative), bent, linear);
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), square, below);
  }
};

void Xielu(float* x, std::int64_t count, const XieluParams& params) {
  Zip(x, x, count, x, XieluOp{params});
}

// ---- Norm

struct ScaleOp {
  float scale;
  HWY_INLINE VF operator()(VF x, VF weight) const {
    return hn::Mul(hn::Mul(x, hn::Set(DF(), scale)), weight);
  }
};

void NormalizeRow(const float* x, const float* weight, float epsilon, std::int64_t width,
                  float* y) {
  const float mean = SumOfSquares(x, width) / static_cast<float>(width);
  Zip(x, weight, width, y, ScaleOp{1.0f / std::sqrt(mean + epsilon)});
}

struct LessOp {
  float mean;
  HWY_INLINE VF operator()(VF x, VF) const { return hn::Sub(x, hn::Set(DF(), mean)); }
};

void CenterRow(const float* x, std::int64_t width, float* y) {
  Zip(x, x, width, y, LessOp{SumOfValues(x, width) / static_cast<float>(width)});
}

// ---- Rows of a table

template <class Loader>
HWY_INLINE void WidenAll(const std::byte* row, std::int64_t width, float* y) {
  const auto* const values = reinterpret_cast<const typename Loader::Stored*>(row);
  const DF d;
  const hn::CappedTag<float, 1> d1;
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) hn::StoreU(Loader::Load(d, values + i), d, y + i);
  for (; i < width; ++i) hn::StoreU(Loader::Load(d1, values + i), d1, y + i);
}

HWY_INLINE void WidenQ8(const std::byte* row, std::int64_t width, float* y) {
  constexpr std::int64_t kBlock = 32;
  constexpr std::int64_t kBlockBytes = 34;
  const DF d;
  const hn::Rebind<std::int32_t, DF> d32;
  const hn::Rebind<std::int8_t, DF> d8;
  for (std::int64_t b = 0; b < width / kBlock; ++b) {
    const std::byte* const block = row + b * kBlockBytes;
    float scale;
    WidenAll<LoadF16>(block, 1, &scale);
    const auto* const quants = reinterpret_cast<const std::int8_t*>(block + 2);
    for (std::int64_t i = 0; i < kBlock; i += kLanes) {
      const auto values = hn::PromoteTo(d32, hn::LoadU(d8, quants + i));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, values), hn::Set(d, scale)), d, y + b * kBlock + i);
    }
  }
}

// The other block types occur only as a few rows of a table, which need no kernels of their own.
HWY_INLINE void WidenBlocks(const std::byte* row, DType dtype, std::int64_t width, float* y) {
  const auto bytes = static_cast<std::size_t>(BytesOf(dtype, width));
  // Cannot fail: the sizes fit, and every weight type can be converted.
  static_cast<void>(Dequantize(dtype, {row, bytes}, {y, static_cast<std::size_t>(width)}).ok());
}

void WidenRow(const std::byte* row, DType dtype, std::int64_t width, float* y) {
  switch (dtype) {
    case DType::kQ8_0: return WidenQ8(row, width, y);
    case DType::kF16: return WidenAll<LoadF16>(row, width, y);
    case DType::kBF16: return WidenAll<LoadBF16>(row, width, y);
    case DType::kF32: return WidenAll<LoadF32>(row, width, y);
    default: return WidenBlocks(row, dtype, width, y);
  }
}

// ---- Rotation

template <class D>
HWY_INLINE void RotatePair(D d, hn::Vec<D> cosine, hn::Vec<D> sine, hn::Vec<D>& a, hn::Vec<D>& b) {
  static_cast<void>(d);
  const auto rotated = hn::MulSub(a, cosine, hn::Mul(b, sine));
  b = hn::MulAdd(a, sine, hn::Mul(b, cosine));
  a = rotated;
}

template <class D>
HWY_INLINE void RotateInterleaved(D d, float* pairs, const float* cosines, const float* sines) {
  hn::Vec<D> a;
  hn::Vec<D> b;
  hn::LoadInterleaved2(d, pairs, a, b);
  RotatePair(d, hn::LoadU(d, cosines), hn::LoadU(d, sines), a, b);
  hn::StoreInterleaved2(a, b, d, pairs);
}

template <class D>
HWY_INLINE void RotateHalves(D d, float* first, float* second, const float* cosines,
                             const float* sines) {
  hn::Vec<D> a = hn::LoadU(d, first);
  hn::Vec<D> b = hn::LoadU(d, second);
  RotatePair(d, hn::LoadU(d, cosines), hn::LoadU(d, sines), a, b);
  hn::StoreU(a, d, first);
  hn::StoreU(b, d, second);
}

template <class D>
HWY_INLINE std::int64_t RotateFrom(D d, std::int64_t i, float* head, const float* cosines,
                                   const float* sines, std::int64_t pairs,
                                   RopeParams::Pairing pairing) {
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(D()));
  for (; i + kStep <= pairs; i += kStep) {
    if (pairing == RopeParams::Pairing::kInterleaved) {
      RotateInterleaved(d, head + 2 * i, cosines + i, sines + i);
    } else {
      RotateHalves(d, head + i, head + pairs + i, cosines + i, sines + i);
    }
  }
  return i;
}

void RotateHead(float* head, const float* cosines, const float* sines, std::int64_t pairs,
                RopeParams::Pairing pairing) {
  std::int64_t i = RotateFrom(DF(), 0, head, cosines, sines, pairs, pairing);
  i = RotateFrom(hn::CappedTag<float, 4>(), i, head, cosines, sines, pairs, pairing);
  RotateFrom(hn::CappedTag<float, 1>(), i, head, cosines, sines, pairs, pairing);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::kernel {

HWY_EXPORT(WidenRow);
HWY_EXPORT(NormalizeRow);
HWY_EXPORT(CenterRow);
HWY_EXPORT(Xielu);
HWY_EXPORT(Gate);
HWY_EXPORT(GateClamped);
HWY_EXPORT(Activate);
HWY_EXPORT(SoftCap);
HWY_EXPORT(Multiply);
HWY_EXPORT(Add);
HWY_EXPORT(Scale);
HWY_EXPORT(AddScaled);
HWY_EXPORT(RotateHead);

void WidenRow(const std::byte* row, DType dtype, std::int64_t width, float* y) {
  HWY_DYNAMIC_DISPATCH(WidenRow)(row, dtype, width, y);
}

void NormalizeRow(const float* x, const float* weight, float epsilon, std::int64_t width,
                  float* y) {
  HWY_DYNAMIC_DISPATCH(NormalizeRow)(x, weight, epsilon, width, y);
}

void CenterRow(const float* x, std::int64_t width, float* y) {
  HWY_DYNAMIC_DISPATCH(CenterRow)(x, width, y);
}

void Xielu(float* x, std::int64_t count, const XieluParams& params) {
  HWY_DYNAMIC_DISPATCH(Xielu)(x, count, params);
}

void Gate(float* gate, const float* up, std::int64_t count, Activation activation) {
  HWY_DYNAMIC_DISPATCH(Gate)(gate, up, count, activation);
}

void GateClamped(float* gate, const float* up, std::int64_t count, float alpha, float limit) {
  HWY_DYNAMIC_DISPATCH(GateClamped)(gate, up, count, alpha, limit);
}

void Activate(float* x, std::int64_t count, Activation activation) {
  HWY_DYNAMIC_DISPATCH(Activate)(x, count, activation);
}

void SoftCap(float* x, std::int64_t count, float cap) {
  HWY_DYNAMIC_DISPATCH(SoftCap)(x, count, cap);
}

void Multiply(float* x, const float* y, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Multiply)(x, y, count);
}

void Add(float* x, const float* y, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Add)(x, y, count);
}

void Scale(const float* x, float factor, std::int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(Scale)(x, factor, count, y);
}

void AddScaled(const float* x, float factor, std::int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(x, factor, count, y);
}

void RotateHead(float* head, const float* cosines, const float* sines, std::int64_t pairs,
                RopeParams::Pairing pairing) {
  HWY_DYNAMIC_DISPATCH(RotateHead)(head, cosines, sines, pairs, pairing);
}

}  // namespace kvcache::cpu::kernel
#endif  // HWY_ONCE
