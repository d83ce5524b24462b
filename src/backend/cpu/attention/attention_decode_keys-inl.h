// The keys of few rows, for every target: packed queries, and scores of the cells that a segment
// of a history lies in. One structure for all types: tiles of sixteen cells, one after another.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_DECODE_KEYS_INL_H_
#endif

#include <algorithm>
#include <span>

#include "backend/cpu/attention/attention_block_keys-inl.h"
#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_split.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// One head's keys.
template <DType kType>
class KeyTiles {
 public:
  KeyTiles(const LayerKv& layer, int kv_head, const StreamLink& stream)
      : stream_(stream),
        k_dim_(layer.shape.k_dim),
        tile_bytes_(BytesOf(kType, kCellTile * layer.shape.k_dim)),
        head_(layer.k + BytesOf(kType, kv_head * layer.cells * layer.shape.k_dim)) {}

  // Tiles that are scored at once: what fits into the registers beside the rows' sums.
  template <int R>
  static constexpr int AtOnce() {
    if (IsKvBlockType(kType)) return !kManyRegisters || R > 4 ? 1 : R <= 2 ? 4 : 2;
    return !kManyRegisters ? (R <= 2 ? 2 : 1) : R == 1 ? 8 : R <= 3 ? 4 : 2;
  }

  std::int64_t tile_bytes() const { return tile_bytes_; }
  const std::byte* Tile(std::int64_t cell) const { return head_ + cell / kCellTile * tile_bytes_; }

  // scores[r][0, 16 NT) of the tiles from `tile` on. `q` holds R packed queries.
  template <int R, int NT>
  void Score(const std::byte* tile, float* q, float* scores, std::size_t score_stride,
             SplitPrefetch* prefetch) const {
    if constexpr (IsKvBlockType(kType)) {
      ScoreBlockTiles<kType, R, NT, Stream::kMemory>(reinterpret_cast<const std::uint8_t*>(tile),
                                                     k_dim_, BlockQueries<R>(q, k_dim_), scores,
                                                     score_stride, prefetch);
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
  std::int64_t tile_bytes_;
  const std::byte* head_;
};

// Scores of the cells that hold positions [begin, end) of one segment, at scores[r][position].
// The first tile may begin before them: what it has there must not reach the scores.
template <int R, DType kType>
void ScoreCells(const KeyTiles<kType>& keys, const Segment& segment, float* q, float* scores,
                SplitPrefetch* prefetch) {
  constexpr int kTiles = KeyTiles<kType>::template AtOnce<R>();
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

// R rows, all cells of the segments.
struct ScoredRows {
  std::span<const Segment> segments;
  float* q;       // R packed queries
  float* scores;  // [R][kScoreStride]
  Prefetcher* prefetcher;
};

template <DType kType, int R>
void ScoreSegments(const LayerKv& layer, int kv_head, const ScoredRows& rows) {
  const KeyTiles<kType> keys(layer, kv_head, rows.prefetcher->keys);
  for (const Segment& segment : rows.segments) {
    ScoreCells<R>(keys, segment, rows.q, rows.scores, &rows.prefetcher->split);
  }
}

template <int R>
void ScoreAllSegments(const LayerKv& layer, int kv_head, const ScoredRows& rows) {
  switch (layer.k_type) {
    case DType::kF16: return ScoreSegments<DType::kF16, R>(layer, kv_head, rows);
    case DType::kBF16: return ScoreSegments<DType::kBF16, R>(layer, kv_head, rows);
    case DType::kQ8_0: return ScoreSegments<DType::kQ8_0, R>(layer, kv_head, rows);
    case DType::kQ4_0: return ScoreSegments<DType::kQ4_0, R>(layer, kv_head, rows);
    default: return ScoreSegments<DType::kF32, R>(layer, kv_head, rows);
  }
}

// What scores of R rows are made with, in k_dim floats a row; rows from `rows` on repeat the first.
// `transformed` is room for one row.
template <int R>
void PackQueriesFor(const LayerKv& layer, const float* const* queries, int rows, float scale,
                    float* transformed, float* q) {
  const int k_dim = layer.shape.k_dim;
  if (IsKvBlockType(layer.k_type)) {
    const std::uint32_t offset = CodeOffset(layer.k_type);
    return PackBlockQueries<R>(queries, rows, k_dim, scale, offset, transformed, q);
  }
  PackQueries<R>(queries, rows, k_dim, scale, q);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
