// A task of decode over keys and values of 16 bits. A warp's keys and values pass through a ring of chunks of its
// own:
//
//   keys    two tiles, w and w + 8, 32 dims: [tile][dim][16 cells]   a lane has one key × R rows
//   values  16 dims, 64 positions: [position][dim]                   a lane has one dim × R / 2 rows
//
// First those of a split's keys, then those of its values, then those of the next split.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/decode_split-inl.h"
#include "backend/cuda/attention/queries-inl.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// The chunks of a warp. All lanes make the same calls.
template <int kRing>
class DecodeChunks {
 public:
  KVCACHE_DEVICE DecodeChunks(const AttendArgs& args, const AttendTask& task,
                              const SeenSplits& splits, std::uint8_t* memory)
      : splits_(splits),
        memory_(memory + Warp() * kRing * kDecodeChunkBytes),
        keys_(args.k + task.kv_head * args.cells * args.k_dim * 2 + Lane() * 16),
        values_(args.v + (task.kv_head * args.v_head + Warp() * kDecodeDims + Lane() % 2 * 8) * 2),
        tile_bytes_(args.k_dim * kAttendTile * 2),
        cell_bytes_(static_cast<int>(args.v_cell) * 2),
        key_chunks_(static_cast<unsigned>(args.k_dim / kDecodeDepth)),
        chunks_(key_chunks_ + static_cast<unsigned>(GroupsOfWarp(args) * kValueChunks)),
        split_(splits.At(0)) {
    KVCACHE_UNROLL_BY(1)
    for (int i = 0; i < kRing - 1; ++i) CopyNext();
  }

  static constexpr int kValueChunks = kAttendSplit / kDecodePositions;

  // Groups of 16 dims: w, w + 8, …
  KVCACHE_DEVICE static int GroupsOfWarp(const AttendArgs& args) {
    return (args.v_dim / kDecodeDims - Warp() + kAttendWarps - 1) / kAttendWarps;
  }

  // The memory of the next chunk, whose bytes are there. The chunk before is overwritten.
  KVCACHE_DEVICE const std::uint8_t* Next() {
    AsyncWait<kRing - 2>();
    WarpBarrier();
    CopyNext();
    const std::uint8_t* const at = memory_ + used_ * kDecodeChunkBytes;
    used_ = (used_ + 1) % kRing;
    return at;
  }

 private:
  KVCACHE_DEVICE void CopyNext() {
    std::uint8_t* const to = memory_ + copied_ * kDecodeChunkBytes + Lane() * 16;
    if (chunk_ < key_chunks_) {
      KVCACHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::int32_t tile = Shuffle(split_.tile, Warp() + i * kAttendWarps);
        if (tile < 0) continue;
        const std::uint8_t* const from =
            keys_ + std::int64_t{tile} * tile_bytes_ + chunk_ * (kDecodeDepth * kAttendTile * 2);
        AsyncCopy16(to + i * kDecodeTileBytes, from);
        AsyncCopy16(to + i * kDecodeTileBytes + 512, from + 512);
      }
    } else {
      const unsigned value = chunk_ - key_chunks_;
      const int part = static_cast<int>(value % kValueChunks);
      const int group = static_cast<int>(value / kValueChunks);
      KVCACHE_UNROLL
      for (int i = 0; i < kDecodePositions / kAttendTile; ++i) {
        const std::int32_t tile = Shuffle(split_.tile, part * (kDecodePositions / kAttendTile) + i);
        const int position = part * kDecodePositions + i * kAttendTile + Lane() / 2;
        if (position < split_.begin || position >= split_.end) continue;
        AsyncCopy16(to + i * 512, values_ +
                                      std::int64_t{tile * kAttendTile + Lane() / 2} * cell_bytes_ +
                                      group * (kAttendWarps * kDecodeDims * 2));
      }
    }
    if (++chunk_ == chunks_) {
      chunk_ = 0;
      split_ = splits_.At(++copied_splits_);
    }
    copied_ = (copied_ + 1) % kRing;
    AsyncCommit();
  }

  const SeenSplits& splits_;
  std::uint8_t* memory_;
  const std::uint8_t* keys_;
  const std::uint8_t* values_;
  int tile_bytes_;
  int cell_bytes_;
  unsigned key_chunks_;
  unsigned chunks_;  // of a split
  SeenSplit split_;  // that is copied
  int copied_splits_ = 0;
  unsigned chunk_ = 0;   // in it
  unsigned copied_ = 0;  // the memory that it goes to
  unsigned used_ = 0;    // the memory of the next chunk to use
};

// Adds 32 dims of the lane's key, at `at`.
template <int R, class T>
KVCACHE_DEVICE void ScoreChunk(const std::uint8_t* at, const float* query, float (&sums)[R]) {
  KVCACHE_UNROLL_BY(8)
  for (int d = 0; d < kDecodeDepth; ++d) {
    const float key = T::At(at + d * (kAttendTile * 2));
    KVCACHE_UNROLL
    for (int first = 0; first < R; first += 4) {
      float four[4];
      LoadFloats(query + d * R + first, four);
      KVCACHE_UNROLL
      for (int r = 0; r < 4; ++r) sums[first + r] = Fma(four[r], key, sums[first + r]);
    }
  }
}

// The weights of a split, from scores on; they are visible to all when it returns.
template <int R, class T>
KVCACHE_DEVICE void WeighFloatSplit(const AttendArgs& args, const SeenSplit& split,
                                    const float* query, DecodeChunks<kDecodeRing<R>>& chunks,
                                    RowJoin& join, DecodeShared<R>& shared) {
  const int tile = Warp() + Lane() / kAttendTile * kAttendWarps;
  const int position = tile * kAttendTile + Lane() % kAttendTile;
  const bool used = split.Has(tile);
  const int offset = Lane() / kAttendTile * kDecodeTileBytes + Lane() % kAttendTile * 2;
  float scores[R];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) scores[r] = 0.0f;
  KVCACHE_UNROLL_BY(1)
  for (int d = 0; d < args.k_dim; d += kDecodeDepth) {
    const std::uint8_t* const at = chunks.Next() + offset;
    if (used) ScoreChunk<R, T>(at, query + d * R, scores);
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    float score[1] = {scores[r]};
    FinishScores(args, shared.rows[r], split.base, {position}, score);
    scores[r] = score[0];
    const std::int32_t most = LargestOfWarp(OrderOf(scores[r]));
    if (Lane() == 0) shared.most[r][Warp()] = most;
  }
  BlockBarrier();
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    shared.weights[r][position] = WeightOf(scores[r], LargestOf<R>(shared, r));
  }
  join.Begin<R>(split, shared);
  BlockBarrier();
}

// The lane's sums of a split: a dim × N rows from `row` on.
template <int R, class T>
struct DecodeSums {
  static constexpr int kRows = R / 2;
  float sums[kRows];

  // Adds a position that is seen, for the rows that see it.
  KVCACHE_DEVICE void AddOne(const DecodeShared<R>& shared, int row, int position, float value) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (position < shared.begin[row + r] || position >= shared.end[row + r]) continue;
      sums[r] = Fma(shared.weights[row + r][position], value, sums[r]);
    }
  }

  // Adds positions [begin, end) of a chunk, whose position 0 would be at `at`. Those of [all_begin, all_end) are
  // seen by all rows that see any.
  KVCACHE_DEVICE void Add(const DecodeShared<R>& shared, int row, const std::uint8_t* at, int begin,
                          int end, int all_begin, int all_end) {
    const int from = Smaller((Larger(begin, all_begin) + 3) & ~3, end);
    const int until = Larger(Smaller(end, all_end) & ~3, from);
    KVCACHE_UNROLL_BY(1)
    for (int j = begin; j < from; ++j) AddOne(shared, row, j, T::At(at + j * (kDecodeDims * 2)));
    KVCACHE_UNROLL_BY(4)
    for (int j = from; j < until; j += 4) {
      float values[4];
      KVCACHE_UNROLL
      for (int i = 0; i < 4; ++i) values[i] = T::At(at + (j + i) * (kDecodeDims * 2));
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float weights[4];
        LoadFloats(&shared.weights[row + r][j], weights);
        KVCACHE_UNROLL
        for (int i = 0; i < 4; ++i) sums[r] = Fma(weights[i], values[i], sums[r]);
      }
    }
    KVCACHE_UNROLL_BY(1)
    for (int j = until; j < end; ++j) AddOne(shared, row, j, T::At(at + j * (kDecodeDims * 2)));
  }
};

template <int R, class T>
KVCACHE_DEVICE void DecodeFloats(const AttendArgs& args) {
  constexpr int kRows = R / 2;
  constexpr int kGroups = kMaxDecodeDims / (kDecodeDims * kAttendWarps);
  DecodeShared<R>& shared = SharedMemory<DecodeShared<R>>();
  auto* const parts = reinterpret_cast<std::uint8_t*>(&shared + 1);
  auto* const query = reinterpret_cast<float*>(parts + args.layout.query);
  const AttendTask task = args.tasks[BlockX()];
  const SeenSplits splits(args, task);
  using Chunks = DecodeChunks<kDecodeRing<R>>;
  Chunks chunks(args, task, splits, parts + args.layout.stages);
  ListDecodeRows<R>(args, task, shared);
  BlockBarrier();
  ScaleQueries<R>(args, shared.rows, query);
  BlockBarrier();

  const int row = Lane() / kDecodeDims * kRows;
  const int groups = Chunks::GroupsOfWarp(args);
  const bool merge = task.distance == 0;
  float* const results =
      args.partials + task.partials + Warp() * kDecodeDims + Lane() % kDecodeDims;
  float merged[kGroups][kRows] = {};
  KVCACHE_UNROLL_BY(1)
  for (int i = 0; i < task.splits; ++i) {
    const SeenSplit split = splits.At(i);
    RowJoin join;
    WeighFloatSplit<R, T>(args, split, query, chunks, join, shared);
    join.End<R>(args, task, merge ? nullptr : args.partials + task.partials + i * task.distance,
                shared);
    int all_begin = split.begin;
    int all_end = split.end;
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int first = shared.begin[row + r];
      const int last = shared.end[row + r];
      if (last <= first) continue;
      all_begin = Larger(all_begin, first);
      all_end = Smaller(all_end, last);
    }
    KVCACHE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      if (g >= groups) continue;
      DecodeSums<R, T> of;
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) of.sums[r] = 0.0f;
      KVCACHE_UNROLL_BY(1)
      for (int part = 0; part < Chunks::kValueChunks; ++part) {
        const int first = part * kDecodePositions;
        const std::uint8_t* const at =
            chunks.Next() + Lane() % kDecodeDims * 2 - first * (kDecodeDims * 2);
        of.Add(shared, row, at, Larger(first, split.begin),
               Smaller(first + kDecodePositions, split.end), all_begin, all_end);
      }
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (merge) {
          const MergeFactors factors{shared.keep[row + r], shared.add[row + r]};
          merged[g][r] = Merged(factors, merged[g][r], of.sums[r]);
        } else if (row + r < task.rows) {
          results[i * task.distance + (row + r) * args.partial_floats +
                  g * (kAttendWarps * kDecodeDims)] = of.sums[r];
        }
      }
    }
  }
  AsyncWait<0>();
  if (!merge) return;
  KVCACHE_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (g >= groups || row + r >= task.rows) continue;
      results[(row + r) * args.partial_floats + g * (kAttendWarps * kDecodeDims)] = merged[g][r];
    }
  }
  WriteMerged<R>(args, task, shared);
}

}  // namespace kvcache::cuda
