// Loads and stores of cache values as f32 vectors, for every target. Widening is exact;
// narrowing rounds to nearest even, once.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_KV_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_KV_CONVERT_INL_H_
#undef KVCACHE_BACKEND_CPU_KV_CONVERT_INL_H_
#else
#define KVCACHE_BACKEND_CPU_KV_CONVERT_INL_H_
#endif

#include "backend/cpu/common/kv_storage.h"
#include "backend/cpu/simd/highway-inl.h"
#include "tensor/float_conversion.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// On the portable target, Highway's f16 conversions truncate and do not support infinities.
inline constexpr bool kHasF16Conversion = HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR;

template <class D>
HWY_INLINE hn::Vec<D> WidenF16(D d, const std::uint16_t* from) {
  if constexpr (kHasF16Conversion) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    HWY_ALIGN float wide[hn::MaxLanes(D())];
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) wide[i] = F16ToF32(from[i]);
    return hn::Load(d, wide);
  }
}

template <class D>
HWY_INLINE void NarrowToF16(D d, hn::Vec<D> value, std::uint16_t* to) {
  if constexpr (kHasF16Conversion) {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    HWY_ALIGN float wide[hn::MaxLanes(D())];
    hn::Store(value, d, wide);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) to[i] = F32ToF16(wide[i]);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> WidenBf16(D d, const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, D> du16;
  const hn::Rebind<std::uint32_t, D> du32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, from))));
}

// Adds half a unit in the last place minus one, plus the last place's own bit, so that ties round
// to even. Highway's own conversion truncates.
template <class D>
HWY_INLINE void NarrowToBf16([[maybe_unused]] D d, hn::Vec<D> value, std::uint16_t* to) {
  const hn::Rebind<std::uint16_t, D> du16;
  const hn::Rebind<std::uint32_t, D> du32;
  const auto bits = hn::BitCast(du32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du32, 0x400000u));
  const auto is_nan = hn::RebindMask(du32, hn::Ne(value, value));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::TruncateTo(du16, high), du16, to);
}

template <DType kType, class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const Storage<kType>* from) {
  if constexpr (kType == DType::kF32) {
    return hn::LoadU(d, from);
  } else if constexpr (kType == DType::kF16) {
    return WidenF16(d, from);
  } else {
    return WidenBf16(d, from);
  }
}

template <DType kType, class D>
HWY_INLINE void StoreNarrow(D d, hn::Vec<D> value, Storage<kType>* to) {
  if constexpr (kType == DType::kF32) {
    hn::StoreU(value, d, to);
  } else if constexpr (kType == DType::kF16) {
    NarrowToF16(d, value, to);
  } else {
    NarrowToBf16(d, value, to);
  }
}

// Rows of any length: whole vectors, then one value at a time.
template <DType kType>
void WidenRow(const Storage<kType>* from, std::size_t count, float* to) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> d1;
  const std::size_t whole = count - count % hn::Lanes(d);
  for (std::size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(LoadWide<kType>(d, from + i), d, to + i);
  }
  for (std::size_t i = whole; i < count; ++i) hn::StoreU(LoadWide<kType>(d1, from + i), d1, to + i);
}

template <DType kType>
void NarrowRow(const float* from, std::size_t count, Storage<kType>* to) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> d1;
  const std::size_t whole = count - count % hn::Lanes(d);
  for (std::size_t i = 0; i < whole; i += hn::Lanes(d)) {
    StoreNarrow<kType>(d, hn::LoadU(d, from + i), to + i);
  }
  for (std::size_t i = whole; i < count; ++i)
    StoreNarrow<kType>(d1, hn::LoadU(d1, from + i), to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
