// The language of kernels for the shim of the tests (kernel.h says what each function does). The functions
// are defined in backend/cuda/shim. What all threads of a block or warp have to reach takes the line of
// its call, so that the shim can tell calls apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/shim/kernel_calls.h"
#include "backend/cuda/shim/kernel_registry.h"
#include "base/arithmetic/operations.h"
#include "tensor/float_conversion.h"

#define KVCACHE_DEVICE inline
#define KVCACHE_OUTLINED inline
#define KVCACHE_TABLE static constexpr
#define KVCACHE_UNROLL
#define KVCACHE_UNROLL_BY(times)

#define KVCACHE_KERNEL_(name, Args, threads, begin)                           \
  static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= 4000);  \
  static_assert((threads) % 32 == 0 && (threads) >= 32 && (threads) <= 1024); \
  static void name##_body(const Args& args);                                  \
  static const ::kvcache::cuda::shim::KernelEntry name##_entry(               \
      #name, threads, sizeof(Args), [](const void* given) {                   \
        begin;                                                                \
        name##_body(*static_cast<const Args*>(given));                        \
      });                                                                     \
  static void name##_body([[maybe_unused]] const Args& args)

#define KVCACHE_KERNEL(name, Args, threads) \
  KVCACHE_KERNEL_(name, Args, threads, ::kvcache::cuda::WaitForEarlier())
#define KVCACHE_WAITING_KERNEL(name, Args, threads) KVCACHE_KERNEL_(name, Args, threads, )

// Copies and fills of a size that is not known, or of many bytes, would escape the checks: the compiler calls
// no function before the accesses of its own memcpy.
extern "C" void* kvcache_shim_copy(void* to, const void* from, std::size_t bytes) noexcept;
extern "C" void* kvcache_shim_fill(void* to, int value, std::size_t bytes) noexcept;

#define KVCACHE_SHIM_COPY_(type)                                 \
  {                                                              \
    struct __attribute__((packed, may_alias)) Value {            \
      type value;                                                \
    };                                                           \
    *static_cast<Value*>(to) = *static_cast<const Value*>(from); \
    return to;                                                   \
  }

extern "C" inline __attribute__((always_inline, gnu_inline, artificial)) void* memcpy(
    void* to, const void* from, std::size_t bytes) noexcept {
  if (__builtin_constant_p(bytes)) {
    if (bytes == 1) KVCACHE_SHIM_COPY_(std::uint8_t)
    if (bytes == 2) KVCACHE_SHIM_COPY_(std::uint16_t)
    if (bytes == 4) KVCACHE_SHIM_COPY_(std::uint32_t)
    if (bytes == 8) KVCACHE_SHIM_COPY_(std::uint64_t)
  }
  return kvcache_shim_copy(to, from, bytes);
}
extern "C" inline __attribute__((always_inline, gnu_inline, artificial)) void* memmove(
    void* to, const void* from, std::size_t bytes) noexcept {
  return kvcache_shim_copy(to, from, bytes);
}
extern "C" inline __attribute__((always_inline, gnu_inline, artificial)) void* memset(
    void* to, int value, std::size_t bytes) noexcept {
  return kvcache_shim_fill(to, value, bytes);
}

#undef KVCACHE_SHIM_COPY_

namespace kvcache::cuda {

using arithmetic::Add;
using arithmetic::BitsOf;
using arithmetic::Div;
using arithmetic::FloatOf;
using arithmetic::Fma;
using arithmetic::Mul;
using arithmetic::Sqrt;
using arithmetic::Sub;

namespace shim {

template <class T>
std::uint32_t WordOf(T value) {
  static_assert(sizeof(T) == 4);
  return __builtin_bit_cast(std::uint32_t, value);
}

}  // namespace shim

// Inlined, as AsyncWait is, so that the shim finds the line of the call.
template <class T>
[[gnu::always_inline]] inline T& SharedMemory() {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 128);
  return *reinterpret_cast<T*>(shim::SharedBytes(sizeof(T)));
}

#define KVCACHE_SITE_ const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void BlockBarrier(KVCACHE_SITE_) {
  shim::BlockBarrier({file, line});
}
inline void WarpBarrier(KVCACHE_SITE_) {
  shim::WarpBarrier({file, line});
}

template <class T>
T ShuffleXor(T value, int mask, KVCACHE_SITE_) {
  return __builtin_bit_cast(T, shim::ShuffleXor(shim::WordOf(value), mask, {file, line}));
}
template <class T>
T Shuffle(T value, int lane, KVCACHE_SITE_) {
  return __builtin_bit_cast(T, shim::Shuffle(shim::WordOf(value), lane, {file, line}));
}
inline std::uint32_t Ballot(bool value, KVCACHE_SITE_) {
  return shim::Ballot(value, {file, line});
}

inline void MmaS8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  KVCACHE_SITE_) {
  const shim::Fragments sums =
      shim::Mma(true, a[0], a[1], a[2], a[3], b[0], b[1], d[0], d[1], d[2], d[3], {file, line});
  for (int i = 0; i < 4; ++i) d[i] = sums.d[i];
}
inline void MmaU8S8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                    KVCACHE_SITE_) {
  const shim::Fragments sums =
      shim::Mma(false, a[0], a[1], a[2], a[3], b[0], b[1], d[0], d[1], d[2], d[3], {file, line});
  for (int i = 0; i < 4; ++i) d[i] = sums.d[i];
}

inline void MmaU8S8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                    const std::int32_t (&c)[4], KVCACHE_SITE_) {
  const shim::Fragments sums =
      shim::Mma(false, a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3], {file, line});
  for (int i = 0; i < 4; ++i) d[i] = sums.d[i];
}

inline void MmaS8Of16(std::int32_t (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b,
                      KVCACHE_SITE_) {
  const shim::Fragments sums =
      shim::Mma(true, a[0], a[1], 0, 0, b, 0, d[0], d[1], d[2], d[3], {file, line});
  for (int i = 0; i < 4; ++i) d[i] = sums.d[i];
}

inline std::int32_t LargestOfWarp(std::int32_t value, KVCACHE_SITE_) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const std::int32_t other = ShuffleXor(value, mask, file, line);
    value = other > value ? other : value;
  }
  return value;
}
inline std::int32_t SumOfWarp(std::int32_t value, KVCACHE_SITE_) {
  auto sum = static_cast<std::uint32_t>(value);
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask, file, line);
  return static_cast<std::int32_t>(sum);
}

#undef KVCACHE_SITE_

inline std::uint32_t BytePermute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= (static_cast<std::uint32_t>(both >> (selector >> 4 * i & 7U) * 8) & 255U) << 8 * i;
  }
  return word;
}
template <class T>
T LoadOnly(const T* at) {
  static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0 && alignof(T) == sizeof(T));
  return *at;
}

inline int PopCount(std::uint32_t value) {
  return __builtin_popcount(value);
}

inline std::int32_t Dp4a(std::uint32_t a, std::uint32_t b, std::int32_t c) {
  std::uint32_t sum = static_cast<std::uint32_t>(c);
  for (int shift = 0; shift < 32; shift += 8) {
    const int product = static_cast<std::int8_t>(a >> shift) * static_cast<std::int8_t>(b >> shift);
    sum += static_cast<std::uint32_t>(product);
  }
  return static_cast<std::int32_t>(sum);
}

template <class T>
T LoadConstant(const T* at) {
  shim::CheckConstant(at, sizeof(T));
  return LoadOnly(at);
}

template <int kPending>
[[gnu::always_inline]] inline void AsyncWait() {
  static_assert(kPending >= 0);
  shim::AsyncWait(kPending);
}

inline float FromHalf(std::uint16_t bits) {
  return F16ToF32(bits);
}
inline std::uint16_t ToHalf(float value) {
  return F32ToF16(value);
}
inline float FromBFloat(std::uint16_t bits) {
  return Bf16ToF32(bits);
}
inline std::uint16_t ToBFloat(float value) {
  return F32ToBf16(value);
}

}  // namespace kvcache::cuda
