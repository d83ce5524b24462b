// The block types of weights, and the chains that compute their products: for the host and for kernels.
#pragma once

#include <cstdint>

#include "backend/cpu/common/block_layout.h"
#include "kvcache/types.h"
#include "tensor/coded_block.h"

namespace kvcache::cuda::linear {

namespace block = cpu::block;

// The chains of docs/design/exactness.md.
enum class Chain : std::uint8_t {
  kPer16,              // as kPer32 for each 16 inputs
  kPer32,              // y = fma(scaled(dot, d_w), d_x, y) for each 32 inputs
  kPer32WithMinimum,   // and y = fma(m_w, d_x · Σ q_x, y)
  kPer256,             // as kPer256WithMinimum without minima
  kPer256WithMinimum,  // a = fma(float(dot), s, a), a = fma(-minimum, Σ q_x, a) for each 32 inputs
                       // from a = +0, then y = fma(a, d_x, y) for each 256
  kPer256Of16,         // as kPer256 with scales per 16 inputs
  kPer256Of16WithMinimum,  // as kPer256WithMinimum with scales and minima per 16 inputs
};

constexpr Chain ChainOf(DType type) {
  switch (type) {
    case DType::kNVFP4: return Chain::kPer16;
    case DType::kQ4_1:
    case DType::kQ5_1: return Chain::kPer32WithMinimum;
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kMXFP4:
    case DType::kIQ4_NL: return Chain::kPer32;
    case DType::kQ4_K:
    case DType::kQ5_K: return Chain::kPer256WithMinimum;
    case DType::kQ2_K: return Chain::kPer256Of16WithMinimum;
    case DType::kQ6_K: return Chain::kPer256Of16;
    default: return codec::CodeTypeOf(type).sub == 16 ? Chain::kPer256Of16 : Chain::kPer256;
  }
}
constexpr bool IsPer256(Chain chain) {
  return chain >= Chain::kPer256;
}
constexpr bool HasMinima(Chain chain) {
  return chain == Chain::kPer32WithMinimum || chain == Chain::kPer256WithMinimum ||
         chain == Chain::kPer256Of16WithMinimum;
}
// The parts of 32 inputs that have a scale of their own.
constexpr int PartsOf(Chain chain) {
  return chain == Chain::kPer16 || chain == Chain::kPer256Of16 ||
                 chain == Chain::kPer256Of16WithMinimum
             ? 2
             : 1;
}

// IQ2_S has the panels of IQ2_XS, and TQ1_0 those of TQ2_0: one kernel serves both.
constexpr DType KernelTypeOf(DType type) {
  if (type == DType::kIQ2_S) return DType::kIQ2_XS;
  return type == DType::kTQ1_0 ? DType::kTQ2_0 : type;
}

// What is subtracted from a code, in types without a table.
constexpr int ZeroOf(DType type) {
  switch (type) {
    case DType::kQ4_0: return 8;
    case DType::kQ5_0: return 16;
    case DType::kQ6_K: return 32;
    case DType::kQ3_K: return 4;
    case DType::kTQ1_0:
    case DType::kTQ2_0: return 1;
    default: return 0;
  }
}

// Calls with(name, type) for each type that has kernels of its own.
#define KVCACHE_LINEAR_BLOCK_TYPES(with)                                                           \
  with(q8_0, DType::kQ8_0) with(q4_0, DType::kQ4_0) with(q5_0, DType::kQ5_0)                       \
      with(mxfp4, DType::kMXFP4) with(iq4_nl, DType::kIQ4_NL) with(q4_1, DType::kQ4_1)             \
          with(q5_1, DType::kQ5_1) with(nvfp4, DType::kNVFP4) with(q4_k, DType::kQ4_K)             \
              with(q5_k, DType::kQ5_K) with(q2_k, DType::kQ2_K) with(q6_k, DType::kQ6_K)           \
                  with(q3_k, DType::kQ3_K) with(iq2_xs, DType::kIQ2_XS) with(iq1_m, DType::kIQ1_M) \
                      with(iq4_xs, DType::kIQ4_XS) with(iq3_s, DType::kIQ3_S)                      \
                          with(iq3_xxs, DType::kIQ3_XXS) with(iq2_xxs, DType::kIQ2_XXS)            \
                              with(iq1_s, DType::kIQ1_S) with(tq2_0, DType::kTQ2_0)

}  // namespace kvcache::cuda::linear
