// Scores of many queries against keys of block types by the matrix tiles of AMX, in the chain of keys-inl.h.
//
// Queries are the first factor of a tile's product (a row is a query), a tile of 16 keys is the second: its lines are
// four values of 16 keys, which is what the instruction wants. A block of 32 values is one product. As in
// linear/tiles/multiply-inl.h, the sums of a step go to memory, and vectors fold them while the tiles compute the next.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_KEY_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_KEY_TILES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_KEY_TILES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_KEY_TILES_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "backend/cpu/attention/block/keys-inl.h"
#include "backend/cpu/attention/block/widen-inl.h"
#include "backend/cpu/common/tile_registers-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// The rows of a tile's queries. A group of rows has as many (attention_prefill.cc).
inline constexpr int kKeyTileRows = 12;
// The rows whose scores a fold keeps in registers, times two tiles of keys.
inline constexpr int kKeyFoldRows = 6;
// The blocks of a step.
inline constexpr int kKeyStepBlocks = 4;

// The sums of two steps: those that the tiles compute, and those that are folded.
struct KeySums {
  alignas(64) std::int32_t sums[2][kKeyStepBlocks][2][kKeyTileRows * kCellTile];
};

// Two tiles of keys and up to kKeyStepBlocks of their blocks.
struct KeyStep {
  const std::uint8_t* keys;
  std::int64_t first;  // of the blocks
  std::int64_t blocks;
  float* scores;  // [row][stride]
};

// Calls attend() with tiles for ScoreKeyTiles.
template <class Attend>
HWY_NOINLINE void WithKeyTiles(const Attend& attend) {
  namespace tiles = block::HWY_NAMESPACE;
  tiles::MatrixTileShapes shapes;
  for (const std::size_t sums : {0, 1, 2, 3}) shapes.Set(sums, kKeyTileRows, block::kLine);
  for (const std::size_t queries : {4, 5}) shapes.Set(queries, kKeyTileRows, kKvBlock);
  for (const std::size_t keys : {6, 7}) shapes.Set(keys, kKvBlock / kKeyGroup, block::kLine);
  const tiles::ConfiguredTiles configured(shapes);
  attend();
}

// The sums of block kSet of two, of two tiles of keys `tile_bytes` apart.
template <int kSet>
HWY_INLINE void MultiplyKeyBlock(const QueryCode* queries, const std::uint8_t* first,
                                 const std::uint8_t* second, std::int32_t* sums,
                                 const block::HWY_NAMESPACE::TileStrides& strides) {
  namespace tiles = block::HWY_NAMESPACE;
  constexpr auto kUnsigned = tiles::SecondFactor::kUnsigned;
  constexpr int kQueries = 4 + kSet;
  constexpr std::int64_t kBlockBytes = kCellTile * kKvBlock;
  constexpr std::int64_t kTileBytes = kKeyTileRows * block::kLine;
  tiles::LoadTile<kQueries, kSet * kKeyTileRows * kKvBlock>(queries, strides.inputs);
  tiles::LoadTile<6, kSet * kBlockBytes>(first, strides.lines);
  tiles::ZeroTile<2 * kSet>();
  tiles::AddTileProducts<2 * kSet, kQueries, 6, kUnsigned>();
  tiles::LoadTile<7, kSet * kBlockBytes>(second, strides.lines);
  tiles::ZeroTile<2 * kSet + 1>();
  tiles::AddTileProducts<2 * kSet + 1, kQueries, 7, kUnsigned>();
  tiles::StoreTile<2 * kSet, 2 * kSet * kTileBytes>(sums, strides.lines);
  tiles::StoreTile<2 * kSet + 1, (2 * kSet + 1) * kTileBytes>(sums, strides.lines);
}

// The sums of one of the two parts of a step's blocks.
HWY_INLINE void MultiplyKeys(const BlockQueries<kKeyTileRows>& q, const KeyStep& step,
                             std::int64_t k_dim, int part, KeySums& memory, int buffer) {
  const std::int64_t b = std::int64_t{2} * part;
  if (b >= step.blocks) return;
  const std::int64_t block = step.first + b;
  const QueryCode* const queries = q.codes + block * kKeyTileRows * kKvBlock;
  const std::uint8_t* const first = step.keys + block * kCellTile * kKvBlock;
  const std::uint8_t* const second = first + WideTileBytes(k_dim);
  std::int32_t* const sums = memory.sums[buffer][b][0];
  const block::HWY_NAMESPACE::TileStrides strides;
  MultiplyKeyBlock<0>(queries, first, second, sums, strides);
  if (b + 1 < step.blocks) MultiplyKeyBlock<1>(queries, first, second, sums, strides);
}

// Adds a step's blocks to the scores of kKeyFoldRows rows from `row` on.
HWY_NOINLINE void FoldKeys(const BlockQueries<kKeyTileRows>& q, const KeyStep& step,
                           std::int64_t k_dim, int row, const KeySums& memory, int buffer,
                           std::size_t score_stride) {
  namespace tiles = block::HWY_NAMESPACE;
  const DF d;
  const tiles::DI di;
  float* const scores = step.scores + static_cast<std::size_t>(row) * score_stride;
  const auto at = [&](int r, int t) HWY_ATTR {
    return scores + static_cast<std::size_t>(r) * score_stride + t * kCellTile;
  };
  VF sum[kKeyFoldRows][2];
  KVCACHE_UNROLL
  for (int r = 0; r < kKeyFoldRows; ++r) {
    KVCACHE_UNROLL
    for (int t = 0; t < 2; ++t) sum[r][t] = step.first == 0 ? hn::Zero(d) : hn::LoadU(d, at(r, t));
  }
  for (std::int64_t b = 0; b < step.blocks; ++b) {
    const std::int64_t block = step.first + b;
    const std::int64_t query = block * kKeyTileRows + row;
    KVCACHE_UNROLL
    for (int t = 0; t < 2; ++t) {
      const std::uint8_t* const scales = step.keys + t * WideTileBytes(k_dim) +
                                         TileScales(DType::kQ8_0, k_dim) + block * kCellTile * 2;
      const tiles::SumScales of_keys(WidenF16(d, reinterpret_cast<const std::uint16_t*>(scales)));
      const std::int32_t* const dots = memory.sums[buffer][b][t] + row * kCellTile;
      KVCACHE_UNROLL
      for (int r = 0; r < kKeyFoldRows; ++r) {
        const auto total =
            hn::Add(hn::Load(di, dots + r * kCellTile), hn::Set(di, q.starts[query + r]));
        sum[r][t] = hn::MulAdd(of_keys.Times(total), hn::Set(d, q.scales[query + r]), sum[r][t]);
      }
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kKeyFoldRows; ++r) {
    KVCACHE_UNROLL
    for (int t = 0; t < 2; ++t) hn::StoreU(sum[r][t], d, at(r, t));
  }
}

// scores[row][begin, end) for `rows` of the queries, up to kKeyTileRows, and keys of one split, which WidenSplitKeys
// has indexed by position. `begin` and `end` are multiples of two tiles. REQUIRES: within WithKeyTiles.
inline void ScoreKeyTiles(const BlockQueries<kKeyTileRows>& q, int rows, const std::uint8_t* keys,
                          std::int64_t k_dim, int begin, int end, float* scores,
                          std::size_t score_stride) {
  KeySums memory;
  KeyStep pending = {};  // its sums are in the other buffer
  int buffer = 0;
  const auto fold = [&](int part) HWY_ATTR {
    const int row = part * kKeyFoldRows;
    if (pending.blocks == 0 || row >= rows) return;
    FoldKeys(q, pending, k_dim, row, memory, 1 - buffer, score_stride);
  };
  const std::int64_t blocks = k_dim / kKvBlock;
  for (std::int64_t key = begin; key < end; key += 2 * kCellTile) {
    for (std::int64_t first = 0; first < blocks; first += kKeyStepBlocks) {
      const KeyStep step = {keys + key / kCellTile * WideTileBytes(k_dim), first,
                            std::min<std::int64_t>(kKeyStepBlocks, blocks - first), scores + key};
      for (int part = 0; part < 2; ++part) {
        MultiplyKeys(q, step, k_dim, part, memory, buffer);
        fold(part);
      }
      pending = step;
      buffer = 1 - buffer;
    }
  }
  for (int part = 0; part < 2; ++part) fold(part);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL

#endif  // per-target include guard
