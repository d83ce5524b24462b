// Unpacks a chunk of a panel to signed bytes, for matrix tiles. They multiply signed bytes, so weights need no bias, and
// sums no correction.
#if defined(KVCACHE_BACKEND_CPU_TILES_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_TILES_UNPACK_INL_H_
#undef KVCACHE_BACKEND_CPU_TILES_UNPACK_INL_H_
#else
#define KVCACHE_BACKEND_CPU_TILES_UNPACK_INL_H_
#endif

#include "backend/cpu/common/tile_registers-inl.h"
#include "backend/cpu/linear/block/unpack-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

// As ToMemory, with bytes minus their bias of 0 or 128.
template <int kBias>
struct ToSignedMemory {
  static_assert(kBias == 0 || kBias == 128);
  static constexpr bool kTakesFourfold = false;
  std::uint8_t* out;
  template <int kGroup, int /*kNth*/>
  HWY_INLINE void Put(int r, V8 bytes) const {
    // Addition, and not a flip of the sign: it joins one that the format ends with.
    if constexpr (kBias != 0) bytes = hn::Add(bytes, hn::Set(D8(), kBias));
    hn::Store(bytes, D8(), out + kGroup * kLine + r * kVectorBytes);
  }
};

// Unpacks the kPart-th inputs that share a scale, of the 32 inputs `b` of a chunk.
template <class Format, int kPart>
HWY_INLINE void UnpackSignedPart(const std::uint8_t* lines, const typename Format::Head& head,
                                 std::int64_t b, ChunkWorkspace& workspace) {
  constexpr Chain kChain = Format::kProduct.chain;
  static_assert(Format::kProduct.bias == 128 || Format::kProduct.bytes.max <= 127,
                "a byte without a bias must be the same with a sign");
  const std::int64_t i = b * PartsOf(kChain) + kPart;
  ToSignedMemory<Format::kProduct.bias> to{workspace.quants + i * GroupsOf(kChain) * kLine};
  Format::template Unpack<kPart>(lines, to);
  StoreFactors(head.Scales(i), workspace.scales + i * kPanelRows);
  if constexpr (HasMinima(kChain)) {
    StoreFactors(head.Minima(i), workspace.minima + i * kPanelRows);
  }
}

// As UnpackChunk. All bytes go to `workspace`, even those of Q8_0.
template <class Format>
HWY_INLINE void UnpackSignedChunk(const std::uint8_t* chunk, std::int64_t blocks,
                                  Prefetching prefetching, ChunkWorkspace& workspace) {
  constexpr std::int64_t kBodyBytes = LayoutOf(Format::kType).body_bytes;
  const bool prefetches = prefetching == Prefetching::kUnpacking;
  if (prefetches) PrefetchAhead<HeadBytes(Format::kType, kChunkBlocks)>(chunk);
  const typename Format::Head head(chunk);
  const std::uint8_t* const lines = chunk + HeadBytes(Format::kType, blocks);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::uint8_t* const from = lines + b * kBodyBytes;
    if (prefetches) PrefetchAhead<kBodyBytes>(from);
    UnpackSignedPart<Format, 0>(from, head, b, workspace);
    if constexpr (PartsOf(Format::kProduct.chain) == 2) {
      UnpackSignedPart<Format, 1>(from, head, b, workspace);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL

#endif  // per-target include guard
