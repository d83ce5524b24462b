#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/recurrence_kernels.h"
#include "backend/cuda/ops/segments-inl.h"
#include "base/arithmetic/activations.h"

namespace kvcache::cuda {
namespace {

// A channel's inputs in a segment. Those before its first token are in the state.
struct Inputs {
  const float* x;  // of the segment's first token
  std::int64_t stride;
  const float* before;  // [kept]
  std::int32_t kept;

  KVCACHE_DEVICE float operator()(std::int32_t token) const {
    return token < 0 ? before[token + kept] : x[token * stride];
  }
};

// Computes a channel's outputs of tokens [begin, end) of a segment; y is the one of its first token. The
// last inputs stay in registers.
template <int kSteps>
KVCACHE_DEVICE void ConvolveInRegisters(const ConvArgs& args, std::int32_t channel,
                                        const Inputs& inputs, std::int32_t begin, std::int32_t end,
                                        float* y) {
  constexpr int kAtOnce = 4;  // loads before the first of their results is used
  const float bias = args.bias != nullptr ? args.bias[channel] : 0.0f;
  float taps[kSteps];
  float window[kSteps - 1 + kAtOnce];
  for (int j = 0; j < kSteps; ++j) taps[j] = args.taps[std::int64_t{channel} * kSteps + j];
  for (int j = 0; j < kSteps - 1; ++j) window[j] = inputs(begin - (kSteps - 1) + j);
  for (std::int32_t t = begin; t < end; t += kAtOnce) {
    for (int i = 0; i < kAtOnce; ++i) {
      window[kSteps - 1 + i] = t + i < end ? inputs.x[(t + i) * inputs.stride] : 0.0f;
    }
    for (int i = 0; i < kAtOnce; ++i) {
      if (t + i >= end) break;
      float sum = 0.0f;
      for (int j = 0; j < kSteps; ++j) sum = Fma(taps[j], window[i + j], sum);
      y[(t + i) * args.y_stride] = args.bias != nullptr ? Add(sum, bias) : sum;
    }
    for (int j = 0; j < kSteps - 1; ++j) window[j] = window[kAtOnce + j];
  }
}

// The same for any number of steps: each input is read once for each step.
KVCACHE_DEVICE void ConvolveAny(const ConvArgs& args, std::int32_t channel, const Inputs& inputs,
                                std::int32_t begin, std::int32_t end, float* y) {
  const float* const taps = args.taps + std::int64_t{channel} * args.steps;
  for (std::int32_t t = begin; t < end; ++t) {
    float sum = 0.0f;
    for (std::int32_t j = 0; j < args.steps; ++j) {
      sum = Fma(taps[j], inputs(t - args.steps + 1 + j), sum);
    }
    y[t * args.y_stride] = args.bias != nullptr ? Add(sum, args.bias[channel]) : sum;
  }
}

KVCACHE_DEVICE void Convolve(const ConvArgs& args, std::int32_t channel, const Inputs& inputs,
                             std::int32_t begin, std::int32_t end, float* y) {
  switch (args.steps) {
    case 3: return ConvolveInRegisters<3>(args, channel, inputs, begin, end, y);
    case 4: return ConvolveInRegisters<4>(args, channel, inputs, begin, end, y);
    default: return ConvolveAny(args, channel, inputs, begin, end, y);
  }
}

}  // namespace

KVCACHE_KERNEL(conv_states, ConvArgs, kConvThreads) {
  const std::int32_t strand = BlockX() / args.blocks;
  const std::int32_t channel = (BlockX() - strand * args.blocks) * kConvThreads + Thread();
  if (channel >= args.channels) return;
  const Strand segments = StrandOf(args.list, strand);
  for (std::int32_t i = segments.begin; i < segments.end; ++i) {
    const StateSegment segment = SegmentOf(args.list, i);
    const std::int32_t kept = args.steps - 1;
    const std::int64_t state = std::int64_t{channel} * kept;
    const Inputs inputs{args.x + segment.first * args.x_stride + channel, args.x_stride,
                        reinterpret_cast<const float*>(segment.before) + state, kept};
    if (args.y != nullptr) {
      const std::int32_t end = segment.tokens < kConvTokens ? segment.tokens : kConvTokens;
      Convolve(args, channel, inputs, 0, end, args.y + segment.first * args.y_stride + channel);
    }
    // Upwards, so that a value is read before it is written if both states are the same memory.
    float* const after = reinterpret_cast<float*>(segment.after) + state;
    for (std::int32_t row = 0; row < kept; ++row) after[row] = inputs(segment.tokens - kept + row);
  }
}

KVCACHE_KERNEL(conv_parts, ConvArgs, kConvThreads) {
  const std::int32_t i = BlockX() / args.blocks;
  const std::int32_t channel = (BlockX() - i * args.blocks) * kConvThreads + Thread();
  if (channel >= args.channels) return;
  const ConvPart part = args.parts[i];
  // kConvTokens tokens before the part are in the same segment, so no state is read.
  const std::int64_t first = part.first - kConvTokens;
  const Inputs inputs{args.x + first * args.x_stride + channel, args.x_stride, nullptr, 0};
  Convolve(args, channel, inputs, kConvTokens, kConvTokens + part.tokens,
           args.y + first * args.y_stride + channel);
}

KVCACHE_KERNEL(decay_rates, RateArgs, kRateThreads) {
  const std::int64_t i = std::int64_t{BlockX()} * kRateThreads + Thread();
  if (i >= args.values) return;
  const std::int64_t token = i / args.heads;
  const std::int64_t head = i - token * args.heads;
  const float raw = args.raw[token * args.raw_stride + head];
  const float step = arithmetic::SoftPlus(Add(raw, args.bias[head]));
  args.steps[token * args.steps_stride + head] = step;
  args.decays[token * args.decays_stride + head] = arithmetic::Decay(args.rates[head], step);
}

}  // namespace kvcache::cuda
