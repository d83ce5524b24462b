// The product of one weight type with a call's activations, declared for every target. The
// definition is multiply-inl.h; it is instantiated in per_32.cc and its
// neighbours, one file per chain, so that the files compile in parallel.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FORMAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FORMAT_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FORMAT_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FORMAT_INL_H_
#endif

#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/block/unpack-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
// The chunks that a tile is multiplied with before the next tile. Their unpacked weights fit into the
// first-level cache; a tile's sums are loaded and stored once for all of them.
inline constexpr int kSpanChunks = 2;
inline constexpr int kWorkspaceChunks = kSpanChunks * kTilePanels;

// A thread's memory while it multiplies.
struct PanelWorkspace {
  explicit PanelWorkspace(std::byte* memory)
      : chunks(reinterpret_cast<ChunkWorkspace*>(memory)),
        y(reinterpret_cast<float*>(memory + kWorkspaceChunks * sizeof(ChunkWorkspace))) {}
  ChunkWorkspace* chunks;  // [kWorkspaceChunks]
  float* y;                // [token][panel][16]
};

inline constexpr std::int64_t kMaxGroupTokens = 512;
inline constexpr std::int64_t kMinGroupTokens = 96;
inline constexpr std::int64_t kGroupValues = 1 << 20;

// MultiplyPanels for weights of type kType.
template <DType kType>
void MultiplyFormat(const Product& product, std::int64_t begin, std::int64_t end,
                    const PanelWorkspace& workspace);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
