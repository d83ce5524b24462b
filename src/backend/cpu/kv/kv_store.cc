// Writes a batch's keys and values into cells, in the type and layout of the cache. Rounding to q8_0
// and q4_0 is in kv_quantize-inl.h, to f16 and bf16 in kv_convert-inl.h. Only the cells' own bytes
// are written, so several tasks may share a tile.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kv/cell_nodes.h"
#include "backend/cpu/kv/kv_check.h"
#include "backend/cpu/kv/kv_kernels.h"
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kv/kv_store.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/common/hadamard-inl.h"
#include "backend/cpu/common/kv_convert-inl.h"
#include "backend/cpu/kv/kv_quantize-inl.h"
#include "backend/cpu/simd/highway-inl.h"

#ifndef KVCACHE_BACKEND_CPU_KV_STORE_ONCE_
#define KVCACHE_BACKEND_CPU_KV_STORE_ONCE_
namespace kvcache::cpu {

// Stores `count` tokens of the batch from `token` on, of one head, in the cells from `cell` on.
struct StoreTask {
  const LayerKv* layer;
  const TensorView* k;
  const TensorView* v;
  int kv_head;
  std::int64_t token;
  std::int64_t cell;
  std::int64_t count;
  float* transformed;  // [k_dim], workspace for K of a block type

  const float* Row(const TensorView& view, std::int64_t i) const {
    return reinterpret_cast<const float*>(view.data + kv_head * view.stride_bytes[1] +
                                          (token + i) * view.stride_bytes[2]);
  }
};

}  // namespace kvcache::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Stores the keys of neighbouring cells of one tile: narrows them row by row, then writes them lane
// by lane.
template <DType kType>
void StoreTilePart(const StoreTask& task, std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kAtOnce = 64;
  const LayerKv& layer = *task.layer;
  const std::int64_t k_dim = layer.shape.k_dim;
  const std::int64_t cell = task.cell + first;
  Storage<kType>* const tile = reinterpret_cast<Storage<kType>*>(layer.k) +
                               HeadKeys(layer, task.kv_head) + KeyTile(layer, cell) +
                               cell % kCellTile;
  HWY_ALIGN Storage<kType> rows[kCellTile][kAtOnce];
  for (std::int64_t d = 0; d < k_dim; d += kAtOnce) {
    const std::int64_t dims = std::min(kAtOnce, k_dim - d);
    for (std::int64_t i = 0; i < count; ++i) {
      NarrowRow<kType>(task.Row(*task.k, first + i) + d, static_cast<std::size_t>(dims), rows[i]);
    }
    for (std::int64_t j = 0; j < dims; ++j) {
      Storage<kType>* const lanes = tile + (d + j) * kCellTile;
      for (std::int64_t i = 0; i < count; ++i) lanes[i] = rows[i][j];
    }
  }
}

template <DType kType>
void StoreTiledKeys(const StoreTask& task) {
  for (std::int64_t i = 0; i < task.count;) {
    const std::int64_t lane = (task.cell + i) % kCellTile;
    const std::int64_t count = std::min(task.count - i, kCellTile - lane);
    StoreTilePart<kType>(task, i, count);
    i += count;
  }
}

template <DType kType>
void StoreKeys(const StoreTask& task) {
  const LayerKv& layer = *task.layer;
  if (layer.layout == KvLayout::kTiled) return StoreTiledKeys<kType>(task);
  const std::int64_t k_dim = layer.shape.k_dim;
  auto* const keys = reinterpret_cast<Storage<kType>*>(layer.k);
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t row = (task.cell + i) * layer.shape.kv_heads + task.kv_head;
    NarrowRow<kType>(task.Row(*task.k, i), static_cast<std::size_t>(k_dim), keys + row * k_dim);
  }
}

template <DType kType>
void StoreTransposedValues(const StoreTask& task) {
  const LayerKv& layer = *task.layer;
  const hn::CappedTag<float, 1> d1;
  auto* const head =
      reinterpret_cast<Storage<kType>*>(layer.v) + HeadValues(layer, task.kv_head) + task.cell;
  for (std::int64_t i = 0; i < task.count; ++i) {
    const float* const row = task.Row(*task.v, i);
    for (std::int64_t d = 0; d < layer.shape.v_dim; ++d) {
      StoreNarrow<kType>(d1, hn::Set(d1, row[d]), head + d * layer.cells + i);
    }
  }
}

template <DType kType>
void StoreValues(const StoreTask& task) {
  const LayerKv& layer = *task.layer;
  if (layer.v_transposed) return StoreTransposedValues<kType>(task);
  const std::int64_t v_dim = layer.shape.v_dim;
  const bool tiled = layer.layout == KvLayout::kTiled;
  const std::int64_t first = tiled ? HeadValues(layer, task.kv_head) : task.kv_head * v_dim;
  const std::int64_t stride = tiled ? v_dim : v_dim * layer.shape.kv_heads;
  auto* const values = reinterpret_cast<Storage<kType>*>(layer.v) + first;
  for (std::int64_t i = 0; i < task.count; ++i) {
    NarrowRow<kType>(task.Row(*task.v, i), static_cast<std::size_t>(v_dim),
                     values + (task.cell + i) * stride);
  }
}

template <DType kType>
void StoreBlockKeys(const StoreTask& task) {
  const LayerKv& layer = *task.layer;
  const std::int64_t k_dim = layer.shape.k_dim;
  std::byte* const head = layer.k + BlockHeadKeys(layer, task.kv_head);
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t cell = task.cell + i;
    std::memcpy(task.transformed, task.Row(*task.k, i),
                static_cast<std::size_t>(k_dim) * sizeof(float));
    const std::int64_t latent = LatentBlocks(layer);
    if (latent > 0) {
      TransformLatent(task.transformed, k_dim, layer.shape.v_dim);
    } else {
      HadamardTransform(task.transformed, k_dim);
    }
    StoreBlockKey<kType>(task.transformed, k_dim, head + BlockTile(kType, k_dim, cell),
                         cell % kCellTile, latent);
  }
}

template <DType kType>
void StoreBlockValues(const StoreTask& task) {
  const LayerKv& layer = *task.layer;
  const std::int64_t v_dim = layer.shape.v_dim;
  std::byte* const head = layer.v + BlockHeadValues(layer, task.kv_head);
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t cell = task.cell + i;
    StoreBlockValue<kType>(task.Row(*task.v, i), v_dim, head + BlockTile(kType, v_dim, cell),
                           cell % kCellTile);
  }
}

void StoreCells(const StoreTask& task) {
  switch (task.layer->k_type) {
    case DType::kQ8_0: StoreBlockKeys<DType::kQ8_0>(task); break;
    case DType::kQ4_0: StoreBlockKeys<DType::kQ4_0>(task); break;
    case DType::kF16: StoreKeys<DType::kF16>(task); break;
    case DType::kBF16: StoreKeys<DType::kBF16>(task); break;
    default: StoreKeys<DType::kF32>(task); break;
  }
  if (task.layer->shape.v_in_k) return;
  switch (task.layer->v_type) {
    case DType::kQ8_0: StoreBlockValues<DType::kQ8_0>(task); break;
    case DType::kQ4_0: StoreBlockValues<DType::kQ4_0>(task); break;
    case DType::kF16: StoreValues<DType::kF16>(task); break;
    case DType::kBF16: StoreValues<DType::kBF16>(task); break;
    default: StoreValues<DType::kF32>(task); break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {
HWY_EXPORT(StoreCells);

namespace {

// Stores the tokens [begin, end) of the task's head, run by run.
void StoreTokens(StoreTask task, std::span<const CellRun> cells, std::int64_t begin,
                 std::int64_t end) {
  std::int64_t token = 0;
  for (const CellRun& run : cells) {
    const std::int64_t first = std::max(token, begin);
    const std::int64_t last = std::min(token + run.length, end);
    if (first < last) {
      task.token = first;
      task.cell = run.cell + (first - token);
      task.count = last - first;
      HWY_DYNAMIC_DISPATCH(StoreCells)(task);
    }
    token += run.length;
    if (token >= end) return;
  }
}

// Returns the cell of a token of the batch.
std::int64_t CellOfToken(std::span<const CellRun> cells, std::int64_t token) {
  for (const CellRun& run : cells) {
    if (token < run.length) return run.cell + token;
    token -= run.length;
  }
  return 0;
}

}  // namespace

Status StoreKv(ThreadPool& pool, Workspace& workspace, const LayerKv& layer, const TensorView& k,
               const TensorView& v, std::span<const CellRun> cells) {
  KVCACHE_RETURN_IF_ERROR(CheckStore(layer, k, v, cells));
  constexpr std::int64_t kTokensAtOnce = 64;
  constexpr std::int64_t kValuesWorthThreads = 16384;
  const std::int64_t batch = k.dims[2];
  const std::int64_t blocks = (batch + kTokensAtOnce - 1) / kTokensAtOnce;
  const std::int64_t row = IsKvBlockType(layer.k_type) ? layer.shape.k_dim : 0;
  const std::int64_t tasks = blocks * layer.shape.kv_heads;
  const bool has_nodes = pool.nodes() > 1 && layer.layout == KvLayout::kTiled;
  const std::int64_t words = row * pool.threads() + (has_nodes ? tasks : 0);
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const memory,
                           workspace.Reserve(static_cast<std::size_t>(words) * 4));
  auto* const transformed = reinterpret_cast<float*>(memory);
  const auto store = [&](std::int64_t task, int thread) {
    const std::int64_t begin = task % blocks * kTokensAtOnce;
    StoreTokens({.layer = &layer,
                 .k = &k,
                 .v = &v,
                 .kv_head = static_cast<int>(task / blocks),
                 .token = 0,
                 .cell = 0,
                 .count = 0,
                 .transformed = transformed + thread * row},
                cells, begin, std::min(begin + kTokensAtOnce, batch));
  };
  if (has_nodes) {
    const std::span<std::int32_t> order(
        reinterpret_cast<std::int32_t*>(transformed + row * pool.threads()),
        static_cast<std::size_t>(tasks));
    const auto node_of = [&](std::int64_t task) {
      return NodeOfCells(pool, layer, static_cast<int>(task / blocks),
                         CellOfToken(cells, task % blocks * kTokensAtOnce));
    };
    // Also a single token: whoever writes a page first has it on its node.
    pool.ParallelFor(
        SortByNode(pool, order, node_of),
        [&](std::int64_t i, int thread) { store(order[static_cast<std::size_t>(i)], thread); },
        TakenBy::kHomeNode);
  } else if (k.elements() + v.elements() >= kValuesWorthThreads) {
    pool.ParallelFor(tasks, store);
  } else {
    for (std::int64_t task = 0; task < tasks; ++task) store(task, 0);
  }
  return Status::Ok();
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
