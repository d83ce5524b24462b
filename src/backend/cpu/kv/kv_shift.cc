// Rotates stored keys (RoPE) by a number of positions, so that a history can move without being
// recomputed. Rotations add up: a key stored for position p becomes the key for p + offset.
//
// The rotation is computed in f32 and rounded to the storage type once. Lanes and single values use
// the same operations, so both layouts have the same bits afterwards.
//
// Keys of block types are dequantised, transformed back by their Hadamard matrix, rotated,
// transformed again and quantised again. All values of such a key are rounded once more, even those
// that RoPE leaves unchanged, but the value in a latent (kv_blocks.h), which stays as it is. Each key is
// processed by itself, so that its bits do not depend on which other keys move.
#include <algorithm>

#include "backend/cpu/common/angles.h"
#include "backend/cpu/kv/kv_check.h"
#include "backend/cpu/kv/kv_kernels.h"
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kv/kv_shift.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/common/hadamard-inl.h"
#include "backend/cpu/common/kv_convert-inl.h"
#include "backend/cpu/kv/kv_quantize-inl.h"
#include "backend/cpu/simd/highway-inl.h"

#ifndef KVCACHE_BACKEND_CPU_KV_SHIFT_ONCE_
#define KVCACHE_BACKEND_CPU_KV_SHIFT_ONCE_
namespace kvcache::cpu {

// Rotates one head's keys in cells [begin, end). Pair i of a key is the values First(i), Second(i).
struct ShiftTask {
  const LayerKv* layer;
  int kv_head;
  std::int64_t begin;
  std::int64_t end;
  int first;  // the first rotated value of a key
  int pairs;
  RopeParams::Pairing pairing;
  const float* cosines;  // [pairs]
  const float* sines;    // [pairs]
  float* row;            // [k_dim], workspace for K of a block type

  std::int64_t First(int i) const {
    return first + (pairing == RopeParams::Pairing::kInterleaved ? 2 * i : i);
  }
  std::int64_t Second(int i) const {
    return first + (pairing == RopeParams::Pairing::kInterleaved ? 2 * i + 1 : i + pairs);
  }
};

}  // namespace kvcache::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

template <class D, class V = hn::Vec<D>>
HWY_INLINE void RotatePair(D d, float cosine, float sine, V& a, V& b) {
  const V c = hn::Set(d, cosine);
  const V s = hn::Set(d, sine);
  const V rotated = hn::MulSub(a, c, hn::Mul(b, s));
  b = hn::MulAdd(a, s, hn::Mul(b, c));
  a = rotated;
}

// Rotates lanes [first, last) of one tile; the other lanes stay as they are.
template <DType kType>
void ShiftTile(const ShiftTask& task, Storage<kType>* tile, int first, int last) {
  const hn::CappedTag<float, kCellTile> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int lane = 0; lane < kCellTile; lane += lanes) {
    const auto index = hn::Iota(d, static_cast<float>(lane));
    const auto inside = hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(first))),
                                hn::Lt(index, hn::Set(d, static_cast<float>(last))));
    for (int i = 0; i < task.pairs; ++i) {
      Storage<kType>* const pa = tile + task.First(i) * kCellTile + lane;
      Storage<kType>* const pb = tile + task.Second(i) * kCellTile + lane;
      const V a = LoadWide<kType>(d, pa);
      const V b = LoadWide<kType>(d, pb);
      V rotated_a = a;
      V rotated_b = b;
      RotatePair(d, task.cosines[i], task.sines[i], rotated_a, rotated_b);
      StoreNarrow<kType>(d, hn::IfThenElse(inside, rotated_a, a), pa);
      StoreNarrow<kType>(d, hn::IfThenElse(inside, rotated_b, b), pb);
    }
  }
}

template <DType kType>
void ShiftTiled(const ShiftTask& task) {
  const LayerKv& layer = *task.layer;
  auto* const head = reinterpret_cast<Storage<kType>*>(layer.k) + HeadKeys(layer, task.kv_head);
  for (std::int64_t cell = task.begin; cell < task.end;) {
    const int first = static_cast<int>(cell % kCellTile);
    const int count = static_cast<int>(std::min<std::int64_t>(kCellTile - first, task.end - cell));
    ShiftTile<kType>(task, head + KeyTile(layer, cell), first, first + count);
    cell += count;
  }
}

template <DType kType>
void ShiftPlain(const ShiftTask& task) {
  const LayerKv& layer = *task.layer;
  const hn::CappedTag<float, 1> d1;
  auto* const keys = reinterpret_cast<Storage<kType>*>(layer.k);
  for (std::int64_t cell = task.begin; cell < task.end; ++cell) {
    Storage<kType>* const key =
        keys + (cell * layer.shape.kv_heads + task.kv_head) * layer.shape.k_dim;
    for (int i = 0; i < task.pairs; ++i) {
      auto a = LoadWide<kType>(d1, key + task.First(i));
      auto b = LoadWide<kType>(d1, key + task.Second(i));
      RotatePair(d1, task.cosines[i], task.sines[i], a, b);
      StoreNarrow<kType>(d1, a, key + task.First(i));
      StoreNarrow<kType>(d1, b, key + task.Second(i));
    }
  }
}

template <DType kType>
void ShiftTyped(const ShiftTask& task) {
  if (task.layer->layout == KvLayout::kTiled) {
    ShiftTiled<kType>(task);
  } else {
    ShiftPlain<kType>(task);
  }
}

template <DType kType>
void ShiftBlocks(const ShiftTask& task) {
  const LayerKv& layer = *task.layer;
  const std::int64_t k_dim = layer.shape.k_dim;
  const std::int64_t latent = LatentBlocks(layer);
  const std::int64_t first = latent * kKvBlock;  // the values before it stay
  const hn::CappedTag<float, 1> d1;
  std::byte* const head = layer.k + BlockHeadKeys(layer, task.kv_head);
  for (std::int64_t cell = task.begin; cell < task.end; ++cell) {
    std::byte* const tile = head + BlockTile(kType, k_dim, cell);
    LoadBlockKey<kType>(tile, cell % kCellTile, k_dim, task.row);
    HadamardTransform(task.row + first, k_dim - first);  // back: the matrix is its own inverse
    for (int i = 0; i < task.pairs; ++i) {
      auto a = hn::LoadU(d1, task.row + task.First(i));
      auto b = hn::LoadU(d1, task.row + task.Second(i));
      RotatePair(d1, task.cosines[i], task.sines[i], a, b);
      hn::StoreU(a, d1, task.row + task.First(i));
      hn::StoreU(b, d1, task.row + task.Second(i));
    }
    HadamardTransform(task.row + first, k_dim - first);
    StoreBlockKey<kType>(task.row, k_dim, tile, cell % kCellTile, latent, latent);
  }
}

void ShiftHead(const ShiftTask& task) {
  switch (task.layer->k_type) {
    case DType::kQ8_0: return ShiftBlocks<DType::kQ8_0>(task);
    case DType::kQ4_0: return ShiftBlocks<DType::kQ4_0>(task);
    case DType::kF16: return ShiftTyped<DType::kF16>(task);
    case DType::kBF16: return ShiftTyped<DType::kBF16>(task);
    default: return ShiftTyped<DType::kF32>(task);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {
HWY_EXPORT(ShiftHead);

void ShiftAngles(Position offset, std::span<const float> inv_freq, float* cosines, float* sines) {
  RotationFactors(offset, inv_freq, 1.0f, cosines, sines);
}

Status ShiftKeys(ThreadPool& pool, Workspace& workspace, const LayerKv& layer,
                 std::span<const CellRun> cells, Position offset, const RopeParams& rope) {
  KVCACHE_RETURN_IF_ERROR(CheckShift(layer, cells, rope));
  const std::size_t pairs = rope.inv_freq.size();
  const bool blocks = IsKvBlockType(layer.k_type);
  // A key of a block type would be rounded again without any change.
  if (blocks && (offset == 0 || pairs == 0)) return Status::Ok();
  const std::int64_t row = blocks ? layer.shape.k_dim : 0;
  const std::size_t floats = 2 * pairs + static_cast<std::size_t>(row * pool.threads());
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const memory, workspace.Reserve(floats * sizeof(float)));
  auto* const cosines = reinterpret_cast<float*>(memory);
  float* const sines = cosines + pairs;
  float* const rows = sines + pairs;
  ShiftAngles(offset, rope.inv_freq, cosines, sines);
  constexpr std::int64_t kCellsAtOnce = 16 * kCellTile;
  for (const CellRun& run : cells) {
    // Pieces begin at tile boundaries, so that two threads never write to one tile.
    const std::int64_t first = run.cell / kCellTile * kCellTile;
    const std::int64_t end = std::int64_t{run.cell} + run.length;
    const std::int64_t pieces = (end - first + kCellsAtOnce - 1) / kCellsAtOnce;
    pool.ParallelFor(pieces * layer.shape.kv_heads, [&](std::int64_t task, int thread) {
      const std::int64_t piece = first + task % pieces * kCellsAtOnce;
      HWY_DYNAMIC_DISPATCH(ShiftHead)
      ({&layer, static_cast<int>(task / pieces), std::max<std::int64_t>(piece, run.cell),
        std::min(piece + kCellsAtOnce, end), rope.first, static_cast<int>(pairs), rope.pairing,
        cosines, sines, rows + thread * row});
    });
  }
  return Status::Ok();
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
