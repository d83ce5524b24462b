#include "backend/cpu/ops/router_kernels.h"

#include <cstring>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/ops/router_kernels.cc"
#include "hwy/foreach_target.h"
// After it, so that they compile once per target.
#include "backend/cpu/simd/exp-inl.h"
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): one idea, two files

struct ExpGate {
  VF largest;
  HWY_INLINE VF operator()(VF x) const {
    return cpu::HWY_NAMESPACE::Exp(DF(), hn::Sub(x, largest));
  }
};
struct SigmoidGate {
  HWY_INLINE VF operator()(VF x) const {
    const VF one = hn::Set(DF(), 1.0f);
    return hn::Div(one, hn::Add(one, BoundedExp(DF(), hn::Neg(x))));
  }
};
struct SameValue {
  HWY_INLINE VF operator()(VF x) const { return x; }
};

// Calls each(first, values) with 16 values f(x) at a time; the last ones may be fewer.
template <class F, class Each>
HWY_INLINE void ForLogits(const float* x, std::int64_t count, const F& f, const Each& each) {
  for (std::int64_t i = 0; i < count; i += kVirtualLanes) {
    HWY_ALIGN float part[kVirtualLanes] = {};
    const float* from = x + i;
    if (i + kVirtualLanes > count) {
      std::memcpy(part, from, static_cast<std::size_t>(count - i) * sizeof(float));
      from = part;
    }
    Lanes16 lanes;
    KVCACHE_UNROLL
    for (int r = 0; r < kRegs; ++r) lanes.r[r] = f(hn::LoadU(DF(), from + r * kLanes));
    each(i, lanes);
  }
}

template <class F>
HWY_INLINE void MapLogits(const float* x, std::int64_t count, const F& f, float* y) {
  ForLogits(x, count, f, [&](std::int64_t i, const Lanes16& lanes) HWY_ATTR {
    HWY_ALIGN float part[kVirtualLanes];
    float* const to = i + kVirtualLanes > count ? part : y + i;
    KVCACHE_UNROLL
    for (int r = 0; r < kRegs; ++r) hn::StoreU(lanes.r[r], DF(), to + r * kLanes);
    if (to == part) std::memcpy(y + i, part, static_cast<std::size_t>(count - i) * sizeof(float));
  });
}

template <class F>
HWY_INLINE float SumLogits(const float* x, std::int64_t count, const F& f) {
  Lanes16 sum = ZeroLanes();
  ForLogits(x, count, f, [&](std::int64_t i, const Lanes16& lanes) HWY_ATTR {
    KVCACHE_UNROLL
    for (int r = 0; r < kRegs; ++r) {
      const std::int64_t left = count - i - r * kLanes;
      const auto mask = hn::FirstN(DF(), static_cast<std::size_t>(left > 0 ? left : 0));
      sum.r[r] = hn::IfThenElse(mask, hn::Add(sum.r[r], lanes.r[r]), sum.r[r]);
    }
  });
  return FoldLanes(sum);
}

void GateValues(const float* logits, std::int64_t count, RouterOptions::Gate gate, float largest,
                float* values) {
  if (gate == RouterOptions::Gate::kSigmoid) return MapLogits(logits, count, SigmoidGate(), values);
  MapLogits(logits, count, ExpGate{hn::Set(DF(), largest)}, values);
}

float SumOfExps(const float* logits, std::int64_t count, float largest) {
  return SumLogits(logits, count, ExpGate{hn::Set(DF(), largest)});
}

float SumOfShares(const float* values, std::int64_t count) {
  return SumLogits(values, count, SameValue());
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::kernel {

HWY_EXPORT(GateValues);
HWY_EXPORT(SumOfExps);
HWY_EXPORT(SumOfShares);

void GateValues(const float* logits, std::int64_t count, RouterOptions::Gate gate, float largest,
                float* values) {
  HWY_DYNAMIC_DISPATCH(GateValues)(logits, count, gate, largest, values);
}

float SumOfExps(const float* logits, std::int64_t count, float largest) {
  return HWY_DYNAMIC_DISPATCH(SumOfExps)(logits, count, largest);
}

float SumOfShares(const float* values, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(SumOfShares)(values, count);
}

}  // namespace kvcache::cpu::kernel
#endif  // HWY_ONCE
