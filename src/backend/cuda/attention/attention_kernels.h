// What attention's host code and kernels share: arguments, tasks, the shared memory of a block.
//
//   attend_R_KV     a task: some splits of one KV head, for up to R rows; leaves partial results
//   decode_R_T      the same for few rows and splits whose tiles are aligned (decode_split-inl.h)
//   attention_merge merges the partial results of each row in ascending order and writes the output
//
// A row is one query token and one head of the group that shares a KV head: row = token × group + head. A
// partial result is that of cpu::PartialStride(v_dim) floats: the weighted sums, and in the last 16 floats
// the largest score and the sum of the weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::cuda {

inline constexpr int kAttendThreads = 256;
inline constexpr int kAttendWarps = kAttendThreads / 32;
inline constexpr int kAttendSplit = 256;  // positions of a split
inline constexpr int kAttendTile = 16;    // cells of a tile
inline constexpr int kScoreFloats = 260;  // of a row of scores; a multiple of 4, no multiple of 32
inline constexpr int kAttendStages = 4;   // copies in the background: this many less one
inline constexpr int kAttendInfos = 3;    // splits that are described at once
inline constexpr int kMaxAttendSlots = 32;
inline constexpr int kMergeThreads = 128;
inline constexpr int kMergeDims = 4;    // of a thread, if there are more than kMergeThreads
inline constexpr int kMergeLoads = 32;  // values that a thread loads at once

enum class KvType : std::int32_t { kF32, kF16, kBF16, kQ8_0, kQ4_0 };

// As HistoryRun and cpu::QueryToken, which include the standard library.
struct AttendRun {
  std::int32_t position;
  std::int32_t cell;
  std::int32_t length;
};
struct AttendToken {
  std::int32_t index;  // in the batch
  std::int32_t position;
  std::int32_t begin;  // positions [begin, end) that it sees
  std::int32_t end;
};

// Some splits of one KV head, for the rows [first_row, first_row + rows) of the tokens from first_token on.
struct AttendTask {
  std::int64_t
      partials;  // floats from AttendArgs::partials to the result of the first split and row
  std::int64_t
      distance;  // floats to the result of the next split; 0: the splits are merged into one
  std::int32_t kv_head;
  std::int32_t first_token;
  std::int32_t first_row;
  std::int32_t rows;
  std::int32_t first_run;  // the history
  std::int32_t runs;
  std::int32_t first_split;  // index into AttendArgs::splits
  std::int32_t splits;
  std::int32_t seen_begin;  // positions that any of the rows sees
  std::int32_t seen_end;
};

// Where each part of a block's shared memory begins, in bytes behind AttendShared<R>.
struct AttendLayout {
  std::int32_t query;        // f32 [k_dim][R], or codes [max(R, 8)][code_pitch]
  std::int32_t code_pitch;   // k_dim + 16
  std::int32_t units;        // f32 [k_dim / 32][max(R, 8)]: units of the queries' codes
  std::int32_t starts;       // i32 [k_dim / 32][max(R, 8)]: where the dot products' sums begin
  std::int32_t transformed;  // f32 [warps][k_dim]
  std::int32_t digits;       // of the weights, see values_of_blocks-inl.h
  std::int32_t stages;       // [kAttendStages][stage_bytes]
  std::int32_t stage_bytes;
  std::int32_t
      values;  // of kernels that decode: see decode_blocks-inl.h; `stages` is their keys or chunks
  std::int32_t scales;
  std::int32_t bytes;  // of all
};

struct AttendArgs {
  const AttendTask* tasks;
  const AttendToken* tokens;
  const AttendRun* runs;
  const std::int32_t* splits;
  const float* q;     // [batch][heads][k_dim]
  const float* bias;  // [heads][distances]; null: none
  float* partials;
  const std::uint8_t* k;
  const std::uint8_t* v;  // of K where V is in K
  std::int64_t cells;
  // In plain layouts, in values: element (head, cell, d) of K is at head × k_head + cell × k_cell + d. So are
  // values, except where they are read from tiles of keys.
  std::int64_t k_head;
  std::int64_t k_cell;
  std::int64_t v_head;
  std::int64_t v_cell;
  std::int64_t v_value;
  std::int64_t partial_floats;  // of a row
  std::int32_t heads;
  std::int32_t group;
  std::int32_t k_dim;
  std::int32_t v_dim;
  KvType k_type;
  KvType v_type;
  std::int32_t tiled;            // K is in tiles
  std::int32_t values_in_tiles;  // V is in K's tiles
  std::int32_t copy_values;      // rows of values are multiples of 16 bytes
  std::int32_t past;             // of the bias
  std::int32_t distances;
  float scale;
  float soft_cap;
  // Stages of float values: dims at a time, the bytes of a position's row, positions (a multiple of 4) or
  // tiles at a time, and the base-2 logarithm of the threads that copy a row.
  std::int32_t pass_dims;
  std::int32_t row_bytes;
  std::int32_t pass_positions;
  std::int32_t pass_tiles;
  std::int32_t row_shift;
  AttendLayout layout;
};

// One split: the cells of its positions, and the tiles that hold them. A slot is a tile of cells, or of gathered
// positions, in the memory of a stage.
struct SplitInfo {
  std::int32_t cells[kAttendSplit];              // -1: not retained, or no row sees it
  std::int32_t slot_cell[kMaxAttendSlots];       // the first cell of the tile
  std::int32_t slot_position[kMaxAttendSlots];   // of the tile's first cell; may be negative
  std::int32_t slot_begin[kMaxAttendSlots + 1];  // the first position that belongs to the slot
  std::uint32_t retained[kAttendWarps];
  std::uint32_t leaders[kAttendWarps];
  std::uint32_t misfits[kAttendWarps];  // slots that do not hold the positions 16 × slot …
  std::int32_t slots;
  std::int32_t gathered;  // copied value by value in the order of positions
  std::int32_t begin;     // positions [begin, end) hold all that are retained
  std::int32_t end;
  std::int32_t holes;  // some of them are not retained
  std::int32_t key_step;
  std::int32_t key_stages;
  std::int32_t value_step;
  std::int32_t value_stages;  // of one pass
};

struct RowInfo {
  std::int32_t query;  // token × heads + head; -1: none
  std::int32_t head;
  std::int32_t position;
  std::int32_t begin;
  std::int32_t end;
};

template <int kRows>
struct AttendShared {
  AttendTask task;
  SplitInfo infos[kAttendInfos];
  RowInfo rows[kRows];
  // Of the current split:
  std::int32_t begin[kRows];  // positions that a row sees
  std::int32_t end[kRows];
  float keep[kRows];  // factor of the result so far; negative: there is none
  float add[kRows];   // factor of this split's; negative: nothing is visible
  // Of the splits so far:
  float max[kRows];
  float sum[kRows];
  alignas(16) float scores[kRows][kScoreFloats];
};

// Kernels that decode (decode_split-inl.h): dims of a warp's values, and the most of all; a chunk of floats has two
// tiles of keys, which differ in their banks, or some positions of values.
inline constexpr int kDecodeBlocks = 3;  // for which a processor has registers
inline constexpr int kDecodeDims = 16;
inline constexpr int kMaxDecodeDims = 256;
template <int kRows>
inline constexpr int kDecodeRing =
    kRows == 4 ? 4 : 3;                      // three blocks for each processor with 227 KB
inline constexpr int kDecodeDepth = 32;      // dims of keys
inline constexpr int kDecodePositions = 64;  // of values
inline constexpr int kDecodeTileBytes = kDecodeDepth * kAttendTile * 2 + 32;
inline constexpr int kDecodeChunkBytes = 2 * kDecodeTileBytes;
static_assert(kDecodePositions * kDecodeDims * 2 <= kDecodeChunkBytes);
inline constexpr int kHalfBlockBytes = 256;  // of a tile
inline constexpr int kDecodeDigitPitch = kAttendSplit + 16;

template <int kRows>
struct DecodeShared {
  alignas(16) float weights[kRows][kScoreFloats];      // of the current split
  alignas(16) std::int32_t most[kRows][kAttendWarps];  // of each warp's scores, the largest
  RowInfo rows[kRows];
  std::int32_t begin[kRows];  // as in AttendShared
  std::int32_t end[kRows];
  float keep[kRows];
  float add[kRows];
  float max[kRows];
  float sum[kRows];
};

// The weights of a block of 32 dims as integers, as in WeightDigits.
template <int kRows>
struct DecodeDigits {
  alignas(16) float units[kRows];
  std::int32_t corrections[kRows];
  alignas(16) std::uint8_t digits[2 * kRows][kDecodeDigitPitch];
};

// How the threads of a block share a task of up to R rows.
template <int R>
struct AttendShape {
  static constexpr int kRows = R;
  static constexpr bool kMany = R > 16;
  static constexpr int kMaxSlots = kMany ? 16 : 32;
  // Scores of float keys: a thread has neighbouring keys of a slot × rows.
  static constexpr int kKeys = kMany ? 8 : 2;
  static constexpr int kKeyRows = kMany ? 8 : R;
  static constexpr int kKeyThreads = kMaxSlots * kAttendTile / kKeys;
  static_assert(kKeyThreads * (R / kKeyRows) == kAttendThreads);
  // Sums of float values: a thread has dims × rows.
  static constexpr int kDims = kMany ? 4 : 1;
  static constexpr int kValueRows = kMany ? 8 : R;
  static constexpr int kPassDims = kMany ? 128 : 256;
  static constexpr int kValueThreads = kPassDims / kDims;
  static_assert(kValueThreads * (R / kValueRows) == kAttendThreads);
  // Scores of keys of block types: queries in groups of eight, the columns of a product. A warp has
  // kGroups of them and every kSlotStep-th slot.
  static constexpr int kQueries = R < 8 ? 8 : R;
  static constexpr int kGroups = kMany ? 2 : kQueries / 8;
  static constexpr int kGroupSets = kQueries / 8 / kGroups;
  static constexpr int kSlotStep = kAttendWarps / kGroupSets;
  static constexpr int kWarpSlots = kMaxSlots / kSlotStep;
  // Sums of values of block types: blocks whose weights are made at once, four rows to a product.
  static constexpr int kBlocksAtOnce = R == 4 ? 2 : 1;
  static constexpr int kQuads = R / 4;
  static constexpr int kQuadsAtOnce = kQuads < 4 ? kQuads : 4;
  static constexpr int kQuadSets = kQuads / kQuadsAtOnce;
  static constexpr int kDigitPitch = kMaxSlots * kAttendTile + 16;
};

// The same for latents, whose values have one scale. A split has at most sixteen slots.
template <int R>
struct LatentShape : AttendShape<R> {
  static constexpr int kMaxSlots = 16;
  static constexpr int kWarpSlots = kMaxSlots / AttendShape<R>::kSlotStep;
  static constexpr int kBlocksAtOnce = 1;
  static constexpr int kDigitPitch = kMaxSlots * kAttendTile + 16;
};

// The weights of some blocks of 32 dims as integers, for values of block types: low and high digits.
template <class Shape>
struct WeightDigits {
  std::uint8_t digits[Shape::kBlocksAtOnce][2 * Shape::kRows][Shape::kDigitPitch];
  float units[Shape::kBlocksAtOnce][Shape::kRows];
  std::int32_t corrections[Shape::kBlocksAtOnce]
                          [Shape::kRows];  // -offset × the sum of the integers
};

// Partial results of a node of the prefix tree, in ascending order of splits.
struct MergeStep {
  std::int64_t first;  // floats from MergeArgs::partials to the first result of KV head 0 and row 0
  std::int64_t of_head;  // floats to the results of the next KV head
  std::int64_t distance;
  std::int32_t count;
  std::int32_t first_token;  // of row 0
};

struct MergeToken {
  std::int32_t index;  // in the batch
  std::int32_t first_step;
  std::int32_t steps;
};

struct MergeShared {
  // Of the results in which something is visible, in ascending order:
  std::int32_t place[kMergeThreads];
  float keep[kMergeThreads];
  float add[kMergeThreads];
  float sum[kMergeThreads];
  // Of each warp's results:
  float max[kMergeThreads / 32];
  std::int32_t visible[kMergeThreads / 32];
};

struct MergeLatentShared {
  MergeShared merge;
  float row[kMergeThreads * kMergeDims];
};

struct MergeArgs {
  const MergeToken* tokens;
  const MergeStep* steps;
  const float* partials;
  const float* sinks;  // [heads] or null
  float* out;          // [batch][heads][v_dim]
  std::int64_t partial_floats;
  std::int32_t heads;
  std::int32_t group;
  std::int32_t v_dim;
};

}  // namespace kvcache::cuda
