// Decode attention's kernels for latents (kv_blocks.h).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/decode/latents.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention/block/values-inl.h"
#include "backend/cpu/attention/decode/keys-inl.h"
#include "backend/cpu/attention/decode/types-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

void LatentKernels::Score(const LayerKv& layer, int kv_head, const ScoredRows& rows, int count) {
  switch (count) {
    case 1: return ScoreSegments<DType::kQ8_0, 1, true>(layer, kv_head, rows);
    case 2: return ScoreSegments<DType::kQ8_0, 2, true>(layer, kv_head, rows);
    case 3: return ScoreSegments<DType::kQ8_0, 3, true>(layer, kv_head, rows);
    case 4: return ScoreSegments<DType::kQ8_0, 4, true>(layer, kv_head, rows);
    default: return ScoreSegments<DType::kQ8_0, kRowsAtOnce, true>(layer, kv_head, rows);
  }
}

// The values are indexed by position, so that all segments are one.
template <int R>
void WeightLatents(const LayerKv& layer, const float* tiles, WeightedRows rows, float* workspace) {
  const ValueTiles values{reinterpret_cast<const std::uint8_t*>(tiles), layer.shape.v_dim,
                          CodeOffset(DType::kQ8_0), nullptr};
  const Segment all{0, kSplitPositions, 0};
  rows.segments = {&all, 1};
  WeightBlocks<DType::kQ8_0, R, Stream::kWorkspace, true>(values, rows, workspace);
}

void LatentKernels::Weight(const LayerKv& layer, const float* values, const WeightedRows& rows,
                           int count, float* workspace) {
  switch (count) {
    case 1: return WeightLatents<1>(layer, values, rows, workspace);
    case 2: return WeightLatents<2>(layer, values, rows, workspace);
    case 3: return WeightLatents<3>(layer, values, rows, workspace);
    case 4: return WeightLatents<4>(layer, values, rows, workspace);
    default: return WeightLatents<kRowsAtOnce>(layer, values, rows, workspace);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();
