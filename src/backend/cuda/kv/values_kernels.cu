// Copies values between float types.
#include "backend/cuda/kv/values_kernels.h"

#include "backend/cuda/kv/float_units-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_DEVICE std::byte* ValueAt(const ValuesSide& side, const std::int64_t (&at)[4]) {
  return side.data + at[0] * side.value_bytes + at[1] * side.strides[0] + at[2] * side.strides[1] +
         at[3] * side.strides[2];
}

// Blocks: pieces of all values, in the order of the dimensions.
KVCACHE_KERNEL(copy_values, CopyValuesArgs, CopyValuesArgs::kThreads) {
  constexpr std::int64_t kPiece = CopyValuesArgs::kThreads * CopyValuesArgs::kValues;
  const std::int64_t begin = BlockX() * kPiece;
  for (int i = 0; i < CopyValuesArgs::kValues; ++i) {
    std::int64_t rest = begin + i * CopyValuesArgs::kThreads + Thread();
    if (rest >= args.values) return;
    std::int64_t at[4];
    for (int d = 0; d < 3; ++d) {
      at[d] = rest % args.dims[d];
      rest /= args.dims[d];
    }
    at[3] = rest;
    std::byte* const from = ValueAt(args.from, at);
    std::byte* const to = ValueAt(args.to, at);
    if (args.from.type != args.to.type) {
      WriteFloat(args.to.type, to, ReadFloat(args.from.type, from));
    } else if (args.to.value_bytes == 4) {
      *reinterpret_cast<std::uint32_t*>(to) = *reinterpret_cast<const std::uint32_t*>(from);
    } else {
      *reinterpret_cast<std::uint16_t*>(to) = *reinterpret_cast<const std::uint16_t*>(from);
    }
  }
}

}  // namespace kvcache::cuda
