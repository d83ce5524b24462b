#include "backend/cuda/ops/rope_kernels.h"

#include "backend/cuda/language/kernel.h"
#include "base/arithmetic/angles.h"

namespace kvcache::cuda {

KVCACHE_KERNEL(rope_angles, AngleArgs, kRopeThreads) {
  const std::int64_t i = std::int64_t{BlockX()} * kRopeThreads + Thread();
  if (i >= args.tokens * args.pairs) return;
  const double position = args.positions[i / args.pairs];
  const double frequency = args.inv_freq[i % args.pairs];
  const arithmetic::SineCosine turn = arithmetic::SinCos(arithmetic::Mul(position, frequency));
  const double magnitude = args.magnitude;
  args.cosines[i] = static_cast<float>(arithmetic::Mul(turn.cosine, magnitude));
  args.sines[i] = static_cast<float>(arithmetic::Mul(turn.sine, magnitude));
}

KVCACHE_KERNEL(rotate_heads, RotateArgs, kRopeThreads) {
  const std::int32_t token = BlockX() / args.blocks;
  const std::int32_t i = (BlockX() - token * args.blocks) * kRopeThreads + Thread();
  const std::int32_t head = i / args.pairs;
  if (head >= args.heads) return;
  const std::int32_t pair = i - head * args.pairs;
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
