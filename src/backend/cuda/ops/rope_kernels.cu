#include "backend/cuda/kv/cell_array-inl.h"
#include "backend/cuda/ops/rope-inl.h"
#include "base/arithmetic/angles.h"

namespace kvcache::cuda {

KVCACHE_KERNEL(rope_angles, AngleArgs, kRopeThreads) {
  const std::int64_t i = std::int64_t{BlockX()} * kRopeThreads + Thread();
  if (i >= args.tokens * args.pairs) return;
  const double position = At(args.positions, static_cast<int>(i / args.pairs));
  const double frequency = At(args.inv_freq, static_cast<int>(i % args.pairs));
  const arithmetic::SineCosine turn = arithmetic::SinCos(arithmetic::Mul(position, frequency));
  const double magnitude = args.magnitude;
  args.cosines[i] = static_cast<float>(arithmetic::Mul(turn.cosine, magnitude));
  args.sines[i] = static_cast<float>(arithmetic::Mul(turn.sine, magnitude));
}

KVCACHE_KERNEL(rotate_heads, RotateArgs, kRopeThreads) {
  const std::int32_t token = BlockX() / args.blocks;
  const std::int32_t i = (BlockX() - token * args.blocks) * kRopeThreads + Thread();
  const std::int32_t head = i / args.pairs;
  if (head < args.heads) RotatePair(args, token, head, i - head * args.pairs);
}

}  // namespace kvcache::cuda
