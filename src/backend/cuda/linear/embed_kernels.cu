// Rows of a table, as f32.
#include "backend/cuda/linear/embed_kernels.h"

#include "backend/cuda/kv/cell_array-inl.h"
#include "backend/cuda/linear/float-inl.h"
#include "backend/cuda/linear/stored_blocks-inl.h"

namespace kvcache::cuda::linear {
namespace {

template <DType kType>
KVCACHE_DEVICE float ValueOfRow(const std::byte* row, int i, const std::uint16_t* codebook) {
  if constexpr (kType == DType::kF32) {
    return LoadOnly(reinterpret_cast<const float*>(row) + i);
  } else if constexpr (kType == DType::kF16) {
    return FromHalf(LoadOnly(reinterpret_cast<const std::uint16_t*>(row) + i));
  } else if constexpr (kType == DType::kBF16) {
    return FromBFloat(LoadOnly(reinterpret_cast<const std::uint16_t*>(row) + i));
  } else {
    constexpr int kValues = InfoOf(kType).block_size;
    constexpr int kBytes = InfoOf(kType).block_bytes;
    const BlockBytes block{row + static_cast<std::int64_t>(i / kValues) * kBytes};
    return ValueOfBlock<kType>(block, i % kValues, codebook);
  }
}

template <DType kType>
KVCACHE_DEVICE void EmbedRow(const EmbedArgs& args) {
  const int token = BlockX() / args.parts;
  const int i = BlockX() % args.parts * kEmbedThreads + Thread();
  if (i >= args.width) return;
  const std::byte* const row = args.table + At(args.tokens, token) * args.table_stride;
  auto* const to =
      reinterpret_cast<float*>(reinterpret_cast<std::byte*>(args.y) + token * args.y_stride);
  to[i] = ValueOfRow<kType>(row, i, args.codebook);
}

}  // namespace

#define KVCACHE_EMBED(name, type)                                 \
  KVCACHE_KERNEL(linear_embed_##name, EmbedArgs, kEmbedThreads) { \
    EmbedRow<type>(args);                                         \
  }

KVCACHE_EMBED(f32, DType::kF32)
KVCACHE_EMBED(f16, DType::kF16)
KVCACHE_EMBED(bf16, DType::kBF16)
KVCACHE_EMBED(iq2_s, DType::kIQ2_S)
KVCACHE_EMBED(tq1_0, DType::kTQ1_0)
KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_EMBED)

#undef KVCACHE_EMBED

}  // namespace kvcache::cuda::linear
