#include "backend/cpu/ops/recurrence_kernels.h"

#include <cmath>
#include <cstring>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/ops/recurrence_kernels.cc"
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

using D1 = hn::CappedTag<float, 1>;

// ---- Convolution

// A block's taps and the inputs before the pass, transposed so that channels are contiguous.
struct ConvWindow {
  HWY_ALIGN float taps[kConvSteps * kConvBlock];
  HWY_ALIGN float inputs[(kConvSteps - 1) * kConvBlock];
};

void Transpose(const float* from, int rows, int channels, float* to) {
  for (int c = 0; c < channels; ++c) {
    for (int row = 0; row < rows; ++row) to[row * kConvBlock + c] = from[c * rows + row];
  }
}

// Returns the inputs of token t, which may be before the pass.
HWY_INLINE const float* InputsOf(const ConvBlock& block, const ConvWindow& window, std::int64_t t) {
  return t < 0 ? window.inputs + (t + block.steps - 1) * kConvBlock : block.x + t * block.x_stride;
}

template <class D>
HWY_INLINE void ConvolveFrom(D d, int c, const ConvBlock& block, const ConvWindow& window,
                             const float* const* inputs, float* y) {
  auto sum = hn::Zero(d);
  for (int j = 0; j < block.steps; ++j) {
    sum = hn::MulAdd(hn::LoadU(d, window.taps + j * kConvBlock + c), hn::LoadU(d, inputs[j] + c),
                     sum);
  }
  if (block.bias != nullptr) sum = hn::Add(sum, hn::LoadU(d, block.bias + c));
  hn::StoreU(sum, d, y + c);
}

void ConvolveTokens(const ConvBlock& block, const ConvWindow& window) {
  const float* inputs[kConvSteps];
  for (std::int64_t t = 0; t < block.tokens; ++t) {
    for (int j = 0; j < block.steps; ++j) {
      inputs[j] = InputsOf(block, window, t - block.steps + 1 + j);
    }
    float* const y = block.y + t * block.y_stride;
    int c = 0;
    for (; c + kLanes <= block.channels; c += kLanes) {
      ConvolveFrom(DF(), c, block, window, inputs, y);
    }
    for (; c < block.channels; ++c) ConvolveFrom(D1(), c, block, window, inputs, y);
  }
}

void Convolve(const ConvBlock& block) {
  ConvWindow window;
  Transpose(block.before, block.steps - 1, block.channels, window.inputs);
  if (block.y != nullptr) {
    Transpose(block.taps, block.steps, block.channels, window.taps);
    ConvolveTokens(block, window);
  }
  const int kept = block.steps - 1;
  for (int row = 0; row < kept; ++row) {
    const float* const input = InputsOf(block, window, block.tokens - kept + row);
    for (int c = 0; c < block.channels; ++c) block.after[c * kept + row] = input[c];
  }
}

// ---- Scan

constexpr std::int64_t kStripKeys = 128;  // the longest keys that a strip has rows for

// Returns the factor of a token's key or query.
HWY_INLINE float NormFactor(const ScanBlock& block, const float* x) {
  if (!(block.norm_epsilon > 0.0f)) return 1.0f;
  return 1.0f / std::sqrt(SumOfSquares(x, block.k_dim) + block.norm_epsilon);
}

// The rows of some columns of a state. Row k begins at data + k × stride.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
};

// Sets held to the values that the state holds under the key of the block's first token.
template <class D, int kRegs, class V = hn::Vec<D>>
HWY_INLINE void HoldFirst(D d, const ScanBlock& b, Rows<const float> from, V (&held)[kRegs]) {
  constexpr std::int64_t kStep = static_cast<std::int64_t>(hn::MaxLanes(D()));
  for (std::int64_t k = 0; k < b.k_dim; ++k) {
    const V by_key = hn::Set(d, b.key[k]);
    const float* const row = from.data + k * from.stride;
    KVCACHE_UNROLL
    for (int r = 0; r < kRegs; ++r) {
      held[r] = hn::MulAdd(hn::LoadU(d, row + r * kStep), by_key, held[r]);
    }
  }
}

// Scans token t of kRegs vectors of columns from `column` on. kOut: also computes the outputs.
// `held` has what the state holds under the token's key. kNext: it then has what the new state holds
// under the next token's key, summed while the new state is in registers.
template <class D, int kRegs, bool kOut, bool kNext, class V = hn::Vec<D>>
HWY_INLINE void ScanToken(D d, const ScanBlock& b, std::int64_t t, std::int64_t column,
                          Rows<const float> from, Rows<float> to, V (&held)[kRegs]) {
  constexpr std::int64_t kStep = static_cast<std::int64_t>(hn::MaxLanes(D()));
  const float* const key = b.key + t * b.key_stride;
  const float* const next_key = kNext ? key + b.key_stride : nullptr;
  const float* const query = kOut ? b.query + t * b.query_stride : nullptr;
  const float decay = b.decay[t * b.decay_stride];
  const float step = b.step[t * b.step_stride];
  const float key_factor = NormFactor(b, key);
  const V weight = hn::Set(d, step * key_factor);
  const V keep = hn::Set(d, decay);
  V values[kRegs];
  V taken[kRegs];  // the update t that is added to the state along the key
  V sums[kRegs];
  KVCACHE_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    values[r] = hn::LoadU(d, b.value + t * b.value_stride + column + r * kStep);
    taken[r] = values[r];
    sums[r] = hn::Zero(d);
  }
  if (b.rule == ScanRule::kDelta) {
    const V decayed = hn::Set(d, decay * key_factor);
    KVCACHE_UNROLL
    for (int r = 0; r < kRegs; ++r) taken[r] = hn::NegMulAdd(held[r], decayed, values[r]);
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    taken[r] = hn::Mul(taken[r], weight);
    held[r] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < b.k_dim; ++k) {
    const V by_key = hn::Set(d, key[k]);
    const V by_query = kOut ? hn::Set(d, query[k]) : hn::Zero(d);
    const V by_next = kNext ? hn::Set(d, next_key[k]) : hn::Zero(d);
    const float* const row = from.data + k * from.stride;
    float* const new_row = to.data + k * to.stride;
    KVCACHE_UNROLL
    for (int r = 0; r < kRegs; ++r) {
      const V kept = hn::Mul(hn::LoadU(d, row + r * kStep), keep);
      const V now = hn::MulAdd(by_key, taken[r], kept);
      hn::StoreU(now, d, new_row + r * kStep);
      if constexpr (kOut) sums[r] = hn::MulAdd(now, by_query, sums[r]);
      if constexpr (kNext) held[r] = hn::MulAdd(now, by_next, held[r]);
    }
  }
  if constexpr (!kOut) return;
  const V scale = hn::Set(d, NormFactor(b, query) * b.query_scale);
  KVCACHE_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    V out = hn::Mul(sums[r], scale);
    if (b.skip != nullptr) out = hn::MulAdd(hn::Set(d, *b.skip), values[r], out);
    hn::StoreU(out, d, b.out + t * b.out_stride + column + r * kStep);
  }
}

// Scans all tokens of kRegs vectors of columns. Each column has chains of its own, so the result
// depends neither on the vectors' width nor on their number.
//
// From the first token to the last, the columns are in `strip`, one row after another. In a state,
// rows are v_dim apart, so that a part of their columns shares few sets of the first-level cache and
// does not fit.
template <class D, int kRegs, bool kOut, class V = hn::Vec<D>>
HWY_INLINE void ScanStrip(D d, const ScanBlock& b, std::int64_t column, Rows<float> strip) {
  Rows<const float> from{b.before + column, b.v_dim};
  const Rows<float> after{b.after + column, b.v_dim};
  if (strip.data == nullptr) strip = after;
  V held[kRegs];
  KVCACHE_UNROLL
  for (int r = 0; r < kRegs; ++r) held[r] = hn::Zero(d);
  const bool delta = b.rule == ScanRule::kDelta;
  if (delta) HoldFirst<D, kRegs>(d, b, from, held);
  for (std::int64_t t = 0; t + 1 < b.tokens; ++t) {
    if (delta) {
      ScanToken<D, kRegs, kOut, true>(d, b, t, column, from, strip, held);
    } else {
      ScanToken<D, kRegs, kOut, false>(d, b, t, column, from, strip, held);
    }
    from = {strip.data, strip.stride};
  }
  ScanToken<D, kRegs, kOut, false>(d, b, b.tokens - 1, column, from, after, held);
}

// Scans as many columns as fill groups of kRegs vectors. Returns the first column of the rest.
template <class D, int kRegs, bool kOut>
HWY_INLINE std::int64_t ScanColumns(D d, const ScanBlock& block, std::int64_t column) {
  constexpr std::int64_t kGroup = kRegs * static_cast<std::int64_t>(hn::MaxLanes(D()));
  HWY_ALIGN float strip[kStripKeys * kGroup];
  float* const rows = block.k_dim <= kStripKeys ? strip : nullptr;  // longer keys: in `after`
  for (; column + kGroup <= block.columns; column += kGroup) {
    ScanStrip<D, kRegs, kOut>(d, block, column, {rows, kGroup});
  }
  return column;
}

template <bool kOut>
void ScanBlockColumns(const ScanBlock& block) {
  std::int64_t column = ScanColumns<DF, 4, kOut>(DF(), block, 0);
  column = ScanColumns<DF, 1, kOut>(DF(), block, column);
  ScanColumns<D1, 1, kOut>(D1(), block, column);
}

void Scan(const ScanBlock& block) {
  block.out != nullptr ? ScanBlockColumns<true>(block) : ScanBlockColumns<false>(block);
}

// ---- Decay

// Returns ln(1 + exp(x)) as max(x, 0) + ln(1 + exp(-|x|)), whose exponential stays finite.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SoftPlus(D d, V x) {
  // Qualified, since Highway may declare functions of the same names.
  const V small = cpu::HWY_NAMESPACE::Log1p(d, cpu::HWY_NAMESPACE::Exp(d, hn::Neg(hn::Abs(x))));
  return hn::Add(Greater(hn::Zero(d), x), small);
}

template <class D>
HWY_INLINE void RatesFrom(D d, std::int64_t i, const float* raw, const float* bias,
                          const float* rates, float* steps, float* decays) {
  const auto step = SoftPlus(d, hn::Add(hn::LoadU(d, raw + i), hn::LoadU(d, bias + i)));
  const auto exponent = hn::Mul(hn::LoadU(d, rates + i), step);
  // Rates are negative. With other rates, from a bad file, the result is large but defined.
  const auto decay = BoundedExp(d, exponent);
  hn::StoreU(step, d, steps + i);
  hn::StoreU(decay, d, decays + i);
}

void DecayRates(const float* raw, const float* bias, const float* rates, std::int64_t count,
                float* steps, float* decays) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) RatesFrom(DF(), i, raw, bias, rates, steps, decays);
  for (; i < count; ++i) RatesFrom(D1(), i, raw, bias, rates, steps, decays);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::kernel {

HWY_EXPORT(Convolve);
HWY_EXPORT(Scan);
HWY_EXPORT(DecayRates);

void Convolve(const ConvBlock& block) {
  HWY_DYNAMIC_DISPATCH(Convolve)(block);
}

void Scan(const ScanBlock& block) {
  HWY_DYNAMIC_DISPATCH(Scan)(block);
}

void DecayRates(const float* raw, const float* bias, const float* rates, std::int64_t count,
                float* steps, float* decays) {
  HWY_DYNAMIC_DISPATCH(DecayRates)(raw, bias, rates, count, steps, decays);
}

}  // namespace kvcache::cpu::kernel
#endif  // HWY_ONCE
