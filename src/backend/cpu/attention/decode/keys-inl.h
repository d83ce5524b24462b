// Decode attention's scores, for every target: the scores of R rows against the keys of all cells
// of a history's segments. The structure is the same for all types: a head's keys are tiles of
// sixteen cells, one after another.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_
#endif

#include <algorithm>
#include <span>

#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/attention/block/keys-inl.h"
#include "backend/cpu/attention/decode/types-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// One head's keys. kLatent: they are latents.
template <DType kType, bool kLatent = false>
class KeyTiles {
 public:
  KeyTiles(const LayerKv& layer, int kv_head, const StreamLink& stream)
      : stream_(stream),
        k_dim_(layer.shape.k_dim),
        latent_(LatentBlocks(layer)),
        tile_bytes_(BytesOf(kType, kCellTile * layer.shape.k_dim)),
        head_(layer.k + BytesOf(kType, kv_head * layer.cells * layer.shape.k_dim)) {}

  // Tiles that are scored at once: as many as fit into the registers with the sums of R rows.
  template <int R>
  static constexpr int AtOnce() {
    if (IsKvBlockType(kType)) return !kManyRegisters || R > 4 ? 1 : R <= 2 ? 4 : 2;
    return !kManyRegisters ? (R <= 2 ? 2 : 1) : R == 1 ? 8 : R <= 3 ? 4 : 2;
  }

  std::int64_t tile_bytes() const { return tile_bytes_; }
  const std::byte* Tile(std::int64_t cell) const { return head_ + cell / kCellTile * tile_bytes_; }

  // Computes scores[r][0, 16 NT) for the NT tiles from `tile` on. `q` holds R packed queries.
  template <int R, int NT>
  void Score(const std::byte* tile, float* q, float* scores, std::size_t score_stride,
             SplitPrefetch* prefetch) const {
    if constexpr (IsKvBlockType(kType)) {
      ScoreBlockTiles<kType, R, NT, Stream::kMemory, MaxCode(kType), kLatent>(
          reinterpret_cast<const std::uint8_t*>(tile), k_dim_, BlockQueries<R>(q, k_dim_, latent_),
          scores, score_stride, prefetch);
    } else {
      constexpr auto kStep = static_cast<std::ptrdiff_t>(NT * kCellTile * sizeof(Storage<kType>));
      ScoreTiles<kType, R, NT>(reinterpret_cast<const Storage<kType>*>(tile), k_dim_, q, scores,
                               score_stride,
                               StreamPrefetch::Ahead(tile, NT * tile_bytes_, kStep, stream_));
    }
  }

 private:
  StreamLink stream_;
  int k_dim_;
  std::int64_t latent_;
  std::int64_t tile_bytes_;
  const std::byte* head_;
};

// Computes scores[r][position] for the positions of one segment. Its first tile may hold cells
// before the segment; their scores are discarded.
template <int R, DType kType, bool kLatent>
void ScoreCells(const KeyTiles<kType, kLatent>& keys, const Segment& segment, float* q,
                float* scores, SplitPrefetch* prefetch) {
  constexpr int kTiles = KeyTiles<kType, kLatent>::template AtOnce<R>();
  const int lane = segment.cell % kCellTile;
  const std::byte* tile = keys.Tile(segment.cell);
  int position = segment.begin;
  if (lane != 0) {
    HWY_ALIGN float first[R * kCellTile];
    keys.template Score<R, 1>(tile, q, first, kCellTile, prefetch);
    const int count = std::min(kCellTile - lane, segment.end - position);
    for (int r = 0; r < R; ++r) {
      std::copy_n(first + r * kCellTile + lane, count, scores + r * kScoreStride + position);
    }
    position += count;
    tile += keys.tile_bytes();
  }
  int tiles = (segment.end - position + kCellTile - 1) / kCellTile;
  for (; tiles >= kTiles; tiles -= kTiles, position += kTiles * kCellTile) {
    keys.template Score<R, kTiles>(tile, q, scores + position, kScoreStride, prefetch);
    tile += kTiles * keys.tile_bytes();
  }
  for (; tiles > 0; --tiles, position += kCellTile) {
    keys.template Score<R, 1>(tile, q, scores + position, kScoreStride, prefetch);
    tile += keys.tile_bytes();
  }
}

template <DType kType, int R, bool kLatent = false>
void ScoreSegments(const LayerKv& layer, int kv_head, const ScoredRows& rows) {
  const KeyTiles<kType, kLatent> keys(layer, kv_head, rows.prefetcher->keys);
  for (const Segment& segment : rows.segments) {
    ScoreCells<R>(keys, segment, rows.q, rows.scores, &rows.prefetcher->split);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
