// The language of kernels for nvcc (kernel.h says what each function does).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "base/arithmetic/operations.h"

#define KVCACHE_DEVICE __device__ __forceinline__
#define KVCACHE_OUTLINED inline __device__ __noinline__
#define KVCACHE_TABLE static __device__ const
#define KVCACHE_UNROLL _Pragma("unroll")
#define KVCACHE_PRAGMA_(text) _Pragma(#text)
#define KVCACHE_UNROLL_BY(times) KVCACHE_PRAGMA_(unroll times)

// `begin` is what a kernel does before its body, `bounds` what __launch_bounds__ gets, in parentheses.
#define KVCACHE_KERNEL_(name, Args, threads, bounds, begin)                                     \
  static_assert(sizeof(Args) <= 4000);                                                          \
  static_assert((threads) % 32 == 0 && (threads) >= 32 && (threads) <= 1024);                   \
  static KVCACHE_DEVICE void name##_body(const Args& args);                                     \
  extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ Args args) { \
    ::kvcache::cuda::LetNextStart();                                                            \
    begin;                                                                                      \
    name##_body(args);                                                                          \
  }                                                                                             \
  static KVCACHE_DEVICE void name##_body(const Args& args)

#define KVCACHE_KERNEL(name, Args, threads) \
  KVCACHE_KERNEL_(name, Args, threads, (threads), ::kvcache::cuda::WaitForEarlier())
#define KVCACHE_WAITING_KERNEL(name, Args, threads) \
  KVCACHE_KERNEL_(name, Args, threads, (threads), )

namespace kvcache::cuda {

using arithmetic::Add;
using arithmetic::BitsOf;
using arithmetic::Div;
using arithmetic::FloatOf;
using arithmetic::Fma;
using arithmetic::Mul;
using arithmetic::Sqrt;
using arithmetic::Sub;

// The blocks of the next kernel may start once all blocks of this one have called it; they wait in WaitForEarlier. A
// device before 9.0 starts kernels one after another.
KVCACHE_DEVICE void LetNextStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
KVCACHE_DEVICE void WaitForEarlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

KVCACHE_DEVICE int Thread() {
  return static_cast<int>(threadIdx.x);
}
KVCACHE_DEVICE int Lane() {
  return static_cast<int>(threadIdx.x % 32);
}
KVCACHE_DEVICE int Warp() {
  return static_cast<int>(threadIdx.x / 32);
}
KVCACHE_DEVICE int BlockX() {
  return static_cast<int>(blockIdx.x);
}
KVCACHE_DEVICE int BlockY() {
  return static_cast<int>(blockIdx.y);
}
KVCACHE_DEVICE int BlockZ() {
  return static_cast<int>(blockIdx.z);
}
KVCACHE_DEVICE int GridX() {
  return static_cast<int>(gridDim.x);
}

template <class T>
KVCACHE_DEVICE T& SharedMemory() {
  static_assert(alignof(T) <= 128);
  extern __shared__ __align__(128) unsigned char kvcache_shared[];
  return *reinterpret_cast<T*>(kvcache_shared);
}

KVCACHE_DEVICE void BlockBarrier() {
  __syncthreads();
}
KVCACHE_DEVICE void WarpBarrier() {
  __syncwarp();
}

template <class T>
KVCACHE_DEVICE T ShuffleXor(T value, int mask) {
  static_assert(sizeof(T) == 4);
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T>
KVCACHE_DEVICE T Shuffle(T value, int lane) {
  static_assert(sizeof(T) == 4);
  return __shfl_sync(0xffffffffu, value, lane);
}
KVCACHE_DEVICE std::uint32_t Ballot(bool value) {
  return __ballot_sync(0xffffffffu, value);
}
KVCACHE_DEVICE std::int32_t LargestOfWarp(std::int32_t value) {
  return __reduce_max_sync(0xffffffffu, value);
}
KVCACHE_DEVICE std::int32_t SumOfWarp(std::int32_t value) {
  return __reduce_add_sync(0xffffffffu, value);
}
KVCACHE_DEVICE int PopCount(std::uint32_t value) {
  return __popc(value);
}

// All lanes of a warp carry out a matrix instruction, so it is volatile: the compiler may not move it behind a branch.
KVCACHE_DEVICE void MmaS8(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                          const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KVCACHE_DEVICE void MmaU8S8(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                            const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KVCACHE_DEVICE void MmaU8S8(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                            const std::uint32_t (&b)[2], const std::int32_t (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}
KVCACHE_DEVICE void MmaS8Of16(std::int32_t (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}
KVCACHE_DEVICE std::uint32_t BytePermute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}
KVCACHE_DEVICE std::int32_t Dp4a(std::uint32_t a, std::uint32_t b, std::int32_t c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

template <class T>
KVCACHE_DEVICE T LoadConstant(const T* at) {
  static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0 && alignof(T) == sizeof(T));
  if constexpr (sizeof(T) == 16) {
    return __builtin_bit_cast(T, __ldg(reinterpret_cast<const uint4*>(at)));
  } else if constexpr (sizeof(T) == 8) {
    return __builtin_bit_cast(T, __ldg(reinterpret_cast<const uint2*>(at)));
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, __ldg(reinterpret_cast<const unsigned*>(at)));
  } else if constexpr (sizeof(T) == 2) {
    return __builtin_bit_cast(T, __ldg(reinterpret_cast<const unsigned short*>(at)));
  } else {
    return __builtin_bit_cast(T, __ldg(reinterpret_cast<const unsigned char*>(at)));
  }
}

// The compiler may move a load of constant memory before WaitForEarlier, so on devices that wait there this is a plain
// load.
template <class T>
KVCACHE_DEVICE T LoadOnly(const T* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0 && alignof(T) == sizeof(T));
  if constexpr (sizeof(T) == 16) {
    return __builtin_bit_cast(T, *reinterpret_cast<const uint4*>(at));
  } else if constexpr (sizeof(T) == 8) {
    return __builtin_bit_cast(T, *reinterpret_cast<const uint2*>(at));
  } else {
    return *at;
  }
#else
  return LoadConstant(at);
#endif
}

KVCACHE_DEVICE void AsyncCopy16(void* shared, const void* global) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
KVCACHE_DEVICE void AsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
KVCACHE_DEVICE void AsyncWait() {
  static_assert(kPending >= 0);
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

KVCACHE_DEVICE float FromHalf(std::uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
KVCACHE_DEVICE std::uint16_t ToHalf(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
KVCACHE_DEVICE float FromBFloat(std::uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
KVCACHE_DEVICE std::uint16_t ToBFloat(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

}  // namespace kvcache::cuda
