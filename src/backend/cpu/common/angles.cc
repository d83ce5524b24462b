#include "backend/cpu/common/angles.h"

#include <cstddef>
#include <cstdint>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/common/angles.cc"
#include "hwy/foreach_target.h"
// After it, so that they compile once per target.
#include "backend/cpu/simd/angles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_EMU128

void FillRotation(double position, const float* inv_freq, std::size_t pairs, double magnitude,
                  float* cosines, float* sines) {
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto found = arithmetic::SinCos(position * static_cast<double>(inv_freq[i]));
    cosines[i] = static_cast<float>(found.cosine * magnitude);
    sines[i] = static_cast<float>(found.sine * magnitude);
  }
}

#else

template <class D>
HWY_INLINE std::size_t FillFrom(D d, std::size_t i, double position, const float* inv_freq,
                                std::size_t pairs, double magnitude, float* cosines, float* sines) {
  const hn::Rebind<float, D> d32;
  const auto factor = hn::Set(d, magnitude);
  for (; i + hn::MaxLanes(D()) <= pairs; i += hn::MaxLanes(D())) {
    const auto frequency = hn::PromoteTo(d, hn::LoadU(d32, inv_freq + i));
    hn::Vec<D> sine;
    hn::Vec<D> cosine;
    SinCos(d, hn::Mul(hn::Set(d, position), frequency), sine, cosine);
    hn::StoreU(hn::DemoteTo(d32, hn::Mul(cosine, factor)), d32, cosines + i);
    hn::StoreU(hn::DemoteTo(d32, hn::Mul(sine, factor)), d32, sines + i);
  }
  return i;
}

void FillRotation(double position, const float* inv_freq, std::size_t pairs, double magnitude,
                  float* cosines, float* sines) {
  const std::size_t done =
      FillFrom(hn::CappedTag<double, 8>(), 0, position, inv_freq, pairs, magnitude, cosines, sines);
  FillFrom(hn::CappedTag<double, 1>(), done, position, inv_freq, pairs, magnitude, cosines, sines);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {

HWY_EXPORT(FillRotation);

void RotationFactors(Position position, std::span<const float> inv_freq, float magnitude,
                     float* cosines, float* sines) {
  HWY_DYNAMIC_DISPATCH(FillRotation)
  (position, inv_freq.data(), inv_freq.size(), magnitude, cosines, sines);
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
