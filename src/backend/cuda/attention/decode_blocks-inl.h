// A task of decode over keys and values of block types. A warp has tiles w and w + 8 of a split's keys and the halves
// w, w + 8, … of its blocks of values, in all tiles: what it copies it reads itself, but for the scales of values. The
// next split's keys are copied once the warp has read this one's, and so are values:
//
//   keys     [tile][as in memory]
//   values   [half of a block][tile][256 bytes]    q4_0: a block, which both of its halves copy
//   scales   [block][256 positions]
//   digits   [block][2 row + (0: low, 1: high)][position]
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/decode_split-inl.h"
#include "backend/cuda/attention/keys-inl.h"
#include "backend/cuda/attention/queries-inl.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/values_of_blocks-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// Copies a warp's parts of splits.
template <bool kKeyBytes, bool kValueBytes>
struct DecodeCopies {
  BlockTiles keys;
  BlockTiles values;
  std::uint8_t* key_memory;
  std::uint8_t* value_memory;
  std::uint8_t* scale_memory;
  int key_bytes;     // of a tile
  int value_blocks;  // of 32 dims

  KVCACHE_DEVICE DecodeCopies(const AttendArgs& args, const AttendTask& task, std::uint8_t* parts)
      : keys(TilesOf(args.k, args.k_type, args.k_dim, args.cells, task.kv_head)),
        values(TilesOf(args.v, args.v_type, args.v_dim, args.cells, task.kv_head)),
        key_memory(parts + args.layout.stages),
        value_memory(parts + args.layout.values),
        scale_memory(parts + args.layout.scales),
        key_bytes(static_cast<int>(keys.tile_bytes)),
        value_blocks(args.v_dim / 32) {}

  KVCACHE_DEVICE void CopyKeys(const SeenSplit& split) const {
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int slot = Warp() + i * kAttendWarps;
      const std::int32_t tile = Shuffle(split.tile, slot);
      if (tile < 0) continue;
      const std::uint8_t* const from = keys.head + tile * keys.tile_bytes;
      std::uint8_t* const to = key_memory + slot * key_bytes;
      KVCACHE_UNROLL_BY(4)
      for (int at = Lane() * 16; at < key_bytes; at += 32 * 16) AsyncCopy16(to + at, from + at);
    }
    AsyncCommit();
  }

  KVCACHE_DEVICE void CopyValues(const SeenSplit& split) const {
    // The lane's two tiles: those of its half of the warp.
    KVCACHE_UNROLL_BY(1)
    for (int half = Warp(); half < 2 * value_blocks; half += kAttendWarps) {
      const int offset = kValueBytes ? half * kHalfBlockBytes : half / 2 * kHalfBlockBytes;
      std::uint8_t* const to = value_memory + half * (16 * kHalfBlockBytes) + Lane() * 16;
      KVCACHE_UNROLL
      for (int i = 0; i < 8; ++i) {
        const std::int32_t tile = Shuffle(split.tile, 2 * i + Lane() / 16);
        if (tile < 0) continue;
        AsyncCopy16(to + i * (2 * kHalfBlockBytes),
                    values.head + tile * values.tile_bytes + offset + Lane() % 16 * 16);
      }
    }
    KVCACHE_UNROLL_BY(1)
    for (int block = Warp(); block < value_blocks; block += kAttendWarps) {
      const std::int32_t tile = Shuffle(split.tile, Lane() / 2);
      if (tile < 0) continue;
      AsyncCopy16(scale_memory + block * (16 * kScaleBytes) + Lane() * 16,
                  values.head + tile * values.tile_bytes + values.scales + block * kScaleBytes +
                      Lane() % 2 * 16);
    }
    AsyncCommit();
  }
};

// The scores of a warp's two tiles, as products have them: keys 2g and 2g + 1, rows 2t and 2t + 1.
template <bool kBytes, class Copies>
KVCACHE_DEVICE void ScoreTiles(const Copies& copies, const SeenSplit& split, int blocks,
                               const CodedQueries& queries, float (&scores)[2][4]) {
  using Shape = AttendShape<8>;  // eight queries
  constexpr int kCodes = kBytes ? 512 : 256;
  const bool used[2] = {split.Has(Warp()), split.Has(Warp() + kAttendWarps)};
  if (!used[0] && !used[1]) return;
  // Without branches around the products, so that they overlap: one tile takes the place of one that is not seen.
  const std::uint8_t* const lane = copies.key_memory + Warp() * copies.key_bytes;
  const int first = used[0] ? 0 : kAttendWarps * copies.key_bytes;
  const int stride = used[0] && used[1] ? kAttendWarps * copies.key_bytes : 0;
  const std::uint8_t* codes = lane + first + Lane() % 4 * 64 + Lane() / 4 * 8;
  const std::uint8_t* scale = lane + first + blocks * kCodes + Lane() / 4 * 4;
  QueryBlocks<Shape> query(queries, 0, 0);
  KVCACHE_UNROLL_BY(4)
  for (int b = 0; b < blocks; ++b, codes += kCodes, scale += kScaleBytes) {
    std::uint32_t columns[2];
    std::int32_t starts[4];
    float units[2];
    query.Load(0, columns, starts, units);
    query.Advance();
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      std::uint32_t a[4];
      LoadKeyCodes<kBytes>(codes + i * stride, a);
      const std::uint32_t both = LoadWord(scale + i * stride);
      const float scales[2] = {StoredF16::Low(both), StoredF16::High(both)};
      const float offsets[2] = {Mul(-kIntegers, scales[0]), Mul(-kIntegers, scales[1])};
      std::int32_t dots[4];
      MmaU8S8(dots, a, columns, starts);
      AddBlock(dots, scales, offsets, units, scores[i]);
    }
  }
}

// The weights of a split, from scores on. Copies the keys of the next.
template <int R, bool kBytes, class Copies>
KVCACHE_DEVICE void WeighBlockSplit(const AttendArgs& args, const SeenSplit& split,
                                    const SeenSplit& next, const CodedQueries& queries,
                                    const Copies& copies, RowJoin& join, DecodeShared<R>& shared) {
  float scores[2][4] = {};
  AsyncWait<1>();  // the values may still be on their way
  WarpBarrier();
  ScoreTiles<kBytes>(copies, split, args.k_dim / 32, queries, scores);
  WarpBarrier();
  copies.CopyKeys(next);
  const int row = Lane() % 4 * 2;
  const int place = Warp() * kAttendTile + Lane() / 4 * 2;
  const int positions[4] = {place, place + 1, place + kAttendWarps * kAttendTile,
                            place + kAttendWarps * kAttendTile + 1};
  const bool used = row < R;
  KVCACHE_UNROLL
  for (int r = 0; r < 2; ++r) {
    std::int32_t most = OrderOf(MinusInfinity());
    if (used) {
      const RowInfo info = shared.rows[row + r];
      float of_row[4];
      KVCACHE_UNROLL
      for (int i = 0; i < 4; ++i) of_row[i] = scores[i / 2][i % 2 * 2 + r];
      FinishScores(args, info, split.base, positions, of_row);
      KVCACHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[i / 2][i % 2 * 2 + r] = of_row[i];
        most = Larger(most, OrderOf(of_row[i]));
      }
    }
    KVCACHE_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) most = Larger(most, ShuffleXor(most, mask));
    if (used && Lane() / 4 == 0) shared.most[row + r][Warp()] = most;
  }
  BlockBarrier();
  KVCACHE_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (!used) continue;
    const float max = LargestOf<R>(shared, row + r);
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      shared.weights[row + r][positions[i]] = WeightOf(scores[i / 2][i % 2 * 2 + r], max);
    }
  }
  join.Begin<R>(split, shared);
  AsyncWait<1>();  // the next keys may still be on their way
  BlockBarrier();
}

// The integers of one row and one block, by a warp.
template <int R>
KVCACHE_DEVICE void WriteDecodeDigits(const SeenSplit& split, const std::uint8_t* scales,
                                      std::int32_t offset, int row, int block,
                                      const DecodeShared<R>& shared, DecodeDigits<R>& to) {
  float products[2][4] = {};
  std::int32_t largest = 0;
  KVCACHE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int position = i * 128 + Lane() * 4;
    if (!split.Has(position / kAttendTile)) continue;
    float weights[4];
    LoadFloats(&shared.weights[row][position], weights);
    std::uint32_t halves[2];
    LoadWords(scales + block * (16 * kScaleBytes) + position * 2, halves);
    KVCACHE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t both = halves[j / 2];
      const float scale = j % 2 == 0 ? StoredF16::Low(both) : StoredF16::High(both);
      // The product of a weight of 0 is 0, even if the scale is not finite.
      products[i][j] = weights[j] == 0.0f ? 0.0f : Mul(weights[j], scale);
      largest = Larger(largest, MagnitudeBits(products[i][j]));
    }
  }
  const Unit unit = UnitOf(LargestOfWarp(largest), 127.0f * 256.0f);
  std::uint32_t sum = 0;
  KVCACHE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int position = i * 128 + Lane() * 4;
    if (!split.Has(position / kAttendTile)) continue;
    // The second byte of (integer + 128) is the high digit; the lowest is the low digit + 128.
    std::uint32_t bits[4];
    KVCACHE_UNROLL
    for (int j = 0; j < 4; ++j) {
      bits[j] = BitsOf(Fma(products[i][j], unit.inverse, kIntegers + 128.0f));
    }
    sum += (bits[0] + bits[1]) + (bits[2] + bits[3]) -
           4u * static_cast<std::uint32_t>(kIntegerBits + 128);
    reinterpret_cast<Word1*>(&to.digits[2 * row][position])->w = PackBytes<0>(bits) ^ 0x80808080u;
    reinterpret_cast<Word1*>(&to.digits[2 * row + 1][position])->w = PackBytes<1>(bits);
  }
  const auto all = static_cast<std::uint32_t>(SumOfWarp(static_cast<std::int32_t>(sum)));
  if (Lane() == 0) {
    to.units[row] = unit.unit;
    to.corrections[row] = static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(offset) * all);
  }
}

// The sums of half a block: of dims 2g and 2g + 1, rows 4q + t.
template <int R, bool kBytes>
KVCACHE_DEVICE void SumDecodeHalf(const SeenSplit& split, const std::uint8_t* codes, int half,
                                  const DecodeDigits<R>& from, float (&values)[R / 4][2]) {
  constexpr int kQuads = R / 4;
  const int g = Lane() / 4;
  const int t = Lane() % 4;
  const std::uint8_t* const at = codes + half * (16 * kHalfBlockBytes) + t * 64 + g * 8;
  const std::uint8_t* const digits = &from.digits[g][t * 4];
  const int shift = kBytes ? 0 : half % 2 * 4;
  std::int32_t sums[kQuads][4] = {};
  const int end = split.EndTile();
  KVCACHE_UNROLL_BY(4)
  for (int tile = split.FirstTile(); tile < end; tile += 2) {
    const bool two = tile + 1 < end;
    std::uint32_t low[2];
    std::uint32_t high[2] = {0, 0};
    LoadWords(at + tile * kHalfBlockBytes, low);
    if (two) LoadWords(at + (tile + 1) * kHalfBlockBytes, high);
    std::uint32_t a[4] = {low[0], low[1], high[0], high[1]};
    if constexpr (!kBytes) {
      KVCACHE_UNROLL
      for (int i = 0; i < 4; ++i) a[i] = a[i] >> shift & 0x0f0f0f0fu;
    }
    KVCACHE_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const std::uint8_t* const column = digits + q * 8 * kDecodeDigitPitch + tile * kAttendTile;
      const std::uint32_t b[2] = {LoadWord(column), two ? LoadWord(column + kAttendTile) : 0};
      MmaU8S8(sums[q], a, b);
    }
  }
  KVCACHE_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    const int row = q * 4 + t;
    const auto correction = static_cast<std::uint32_t>(from.corrections[row]);
    const float unit = from.units[row];
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t total = static_cast<std::uint32_t>(sums[q][2 * i]) +
                                  (static_cast<std::uint32_t>(sums[q][2 * i + 1]) << 8) +
                                  correction;
      values[q][i] = Mul(static_cast<float>(static_cast<std::int32_t>(total)), unit);
    }
  }
}

// kKeyBytes, kValueBytes: q8_0, else q4_0.
template <int R, bool kKeyBytes, bool kValueBytes>
KVCACHE_DEVICE void DecodeBlocks(const AttendArgs& args) {
  constexpr int kQuads = R / 4;
  constexpr int kHalves = kMaxDecodeDims / (16 * kAttendWarps);
  DecodeShared<R>& shared = SharedMemory<DecodeShared<R>>();
  auto* const parts = reinterpret_cast<std::uint8_t*>(&shared + 1);
  const AttendLayout& layout = args.layout;
  auto* const digits = reinterpret_cast<DecodeDigits<R>*>(parts + layout.digits);
  const CodedQueries queries{reinterpret_cast<std::int8_t*>(parts + layout.query),
                             reinterpret_cast<float*>(parts + layout.units),
                             reinterpret_cast<std::int32_t*>(parts + layout.starts),
                             layout.code_pitch};
  const AttendTask task = args.tasks[BlockX()];
  const SeenSplits splits(args, task);
  const DecodeCopies<kKeyBytes, kValueBytes> copies(args, task, parts);
  SeenSplit split = splits.At(0);
  copies.CopyKeys(split);
  copies.CopyValues(split);
  ListDecodeRows<R>(args, task, shared);
  BlockBarrier();
  CodeQueries<R, 8>(args, shared.rows, reinterpret_cast<float*>(parts + layout.transformed),
                    queries);
  BlockBarrier();

  constexpr std::int32_t kOffset = kValueBytes ? 128 : 8;
  const bool merge = task.distance == 0;
  float* const results = args.partials + task.partials + Warp() * kDecodeDims + Lane() / 4 * 2;
  float merged[kHalves][kQuads][2] = {};
  KVCACHE_UNROLL_BY(1)
  for (int i = 0; i < task.splits; ++i) {
    const SeenSplit next = splits.At(i + 1);
    RowJoin join;
    WeighBlockSplit<R, kKeyBytes>(args, split, next, queries, copies, join, shared);
    KVCACHE_UNROLL_BY(1)
    for (int item = Warp(); item < R * copies.value_blocks; item += kAttendWarps) {
      WriteDecodeDigits<R>(split, copies.scale_memory, kOffset, item % R, item / R, shared,
                           digits[item / R]);
    }
    join.End<R>(args, task, merge ? nullptr : args.partials + task.partials + i * task.distance,
                shared);
    BlockBarrier();
    KVCACHE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      const int half = Warp() + h * kAttendWarps;
      if (half >= 2 * copies.value_blocks) continue;
      float values[kQuads][2];
      SumDecodeHalf<R, kValueBytes>(split, copies.value_memory, half, digits[half / 2], values);
      KVCACHE_UNROLL
      for (int q = 0; q < kQuads; ++q) {
        const int row = q * 4 + Lane() % 4;
        const MergeFactors factors{shared.keep[row], shared.add[row]};
        KVCACHE_UNROLL
        for (int k = 0; k < 2; ++k) {
          if (merge) {
            merged[h][q][k] = Merged(factors, merged[h][q][k], values[q][k]);
          } else if (row < task.rows) {
            results[i * task.distance + row * args.partial_floats +
                    h * (kAttendWarps * kDecodeDims) + k] = values[q][k];
          }
        }
      }
    }
    WarpBarrier();
    copies.CopyValues(next);
    split = next;
  }
  AsyncWait<0>();
  if (!merge) return;
  KVCACHE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    if (Warp() + h * kAttendWarps >= 2 * copies.value_blocks) continue;
    KVCACHE_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const int row = q * 4 + Lane() % 4;
      if (row >= task.rows) continue;
      KVCACHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        results[row * args.partial_floats + h * (kAttendWarps * kDecodeDims) + k] = merged[h][q][k];
      }
    }
  }
  WriteMerged<R>(args, task, shared);
}

}  // namespace kvcache::cuda
