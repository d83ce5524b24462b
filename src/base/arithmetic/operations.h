// The operations of which docs/design/exactness.md builds its chains, for the host and for CUDA
// devices: each rounds once, to the nearest, and no compiler joins two of them.
//
// The headers of this folder compile for both without change. A device needs the intrinsics, since
// nvcc fuses products and sums otherwise; the host's compiler has -ffp-contract=off.
// REQUIRES: denormal numbers are kept (nvcc's -ftz=false, which is its default).
//
// Thread safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define KVCACHE_ARITHMETIC __host__ __device__ __forceinline__
#else
#define KVCACHE_ARITHMETIC inline
#endif

namespace kvcache::arithmetic {

#if defined(__CUDA_ARCH__)
KVCACHE_ARITHMETIC float Fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
KVCACHE_ARITHMETIC float Mul(float a, float b) {
  return __fmul_rn(a, b);
}
KVCACHE_ARITHMETIC float Add(float a, float b) {
  return __fadd_rn(a, b);
}
KVCACHE_ARITHMETIC float Sub(float a, float b) {
  return __fsub_rn(a, b);
}
KVCACHE_ARITHMETIC float Div(float a, float b) {
  return __fdiv_rn(a, b);
}
KVCACHE_ARITHMETIC float Sqrt(float a) {
  return __fsqrt_rn(a);
}
KVCACHE_ARITHMETIC double Fma(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
KVCACHE_ARITHMETIC double Mul(double a, double b) {
  return __dmul_rn(a, b);
}
KVCACHE_ARITHMETIC double Add(double a, double b) {
  return __dadd_rn(a, b);
}
KVCACHE_ARITHMETIC double Sub(double a, double b) {
  return __dsub_rn(a, b);
}
KVCACHE_ARITHMETIC double Div(double a, double b) {
  return __ddiv_rn(a, b);
}
KVCACHE_ARITHMETIC double Sqrt(double a) {
  return __dsqrt_rn(a);
}
#else
KVCACHE_ARITHMETIC float Fma(float a, float b, float c) {
  return std::fma(a, b, c);
}
KVCACHE_ARITHMETIC float Mul(float a, float b) {
  return a * b;
}
KVCACHE_ARITHMETIC float Add(float a, float b) {
  return a + b;
}
KVCACHE_ARITHMETIC float Sub(float a, float b) {
  return a - b;
}
KVCACHE_ARITHMETIC float Div(float a, float b) {
  return a / b;
}
KVCACHE_ARITHMETIC float Sqrt(float a) {
  return std::sqrt(a);
}
KVCACHE_ARITHMETIC double Fma(double a, double b, double c) {
  return std::fma(a, b, c);
}
KVCACHE_ARITHMETIC double Mul(double a, double b) {
  return a * b;
}
KVCACHE_ARITHMETIC double Add(double a, double b) {
  return a + b;
}
KVCACHE_ARITHMETIC double Sub(double a, double b) {
  return a - b;
}
KVCACHE_ARITHMETIC double Div(double a, double b) {
  return a / b;
}
KVCACHE_ARITHMETIC double Sqrt(double a) {
  return std::sqrt(a);
}
#endif

// Min and Max return b if an operand is NaN, so a NaN in b stays: callers give the bound as a.
template <class T>
KVCACHE_ARITHMETIC T Min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
KVCACHE_ARITHMETIC T Max(T a, T b) {
  return a > b ? a : b;
}

KVCACHE_ARITHMETIC std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
KVCACHE_ARITHMETIC std::uint64_t BitsOf(double value) {
  std::uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
KVCACHE_ARITHMETIC float FloatOf(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
KVCACHE_ARITHMETIC double DoubleOf(std::uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Clears, and copies, the sign.
KVCACHE_ARITHMETIC float Abs(float value) {
  return FloatOf(BitsOf(value) & 0x7fffffffU);
}
KVCACHE_ARITHMETIC float CopySign(float magnitude, float sign) {
  return FloatOf((BitsOf(magnitude) & 0x7fffffffU) | (BitsOf(sign) & 0x80000000U));
}

}  // namespace kvcache::arithmetic
