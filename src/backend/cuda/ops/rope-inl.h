// Rotates a pair of a head.
//
// Included by kernels only.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/rope_kernels.h"

namespace kvcache::cuda {

KVCACHE_DEVICE void RotatePair(const RotateArgs& args, std::int32_t token, std::int32_t head,
                               std::int32_t pair) {
  const std::int64_t angle = std::int64_t{token} * args.pairs + pair;
  const float cosine = args.cosines[angle];
  const float sine = args.sines[angle];
  float* const x = args.x + token * args.token_stride + head * args.head_stride;
  float& first = args.interleaved ? x[2 * pair] : x[pair];
  float& second = args.interleaved ? x[2 * pair + 1] : x[args.pairs + pair];
  const float a = first;
  const float b = second;
  first = Fma(a, cosine, -Mul(b, sine));
  second = Fma(a, sine, Mul(b, cosine));
}

}  // namespace kvcache::cuda
