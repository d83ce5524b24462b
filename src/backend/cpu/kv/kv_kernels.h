// Writes, copies and rotates the keys and values of a cache. CpuBackend's methods of the same names
// call these functions; kvcache/kv_backend.h defines them.
//
// Thread safety: one call at a time per pool and workspace.
#pragma once

#include <span>

#include "backend/cpu/common/workspace.h"
#include "kvcache/kv_backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

Status StoreKv(ThreadPool& pool, Workspace& workspace, const LayerKv& layer, const TensorView& k,
               const TensorView& v, std::span<const CellRun> cells);

Status CopyCells(ThreadPool& pool, const LayerKv& layer, std::span<const CellMove> moves);

Status TransferCells(ThreadPool& pool, const LayerKv& from, const LayerKv& to,
                     std::span<const CellMove> moves);

// Writes the cosine and the sine of each pair's angle in a shift by `offset` positions. `cosines` and
// `sines` have inv_freq.size() values. For each backend that shifts keys.
void ShiftAngles(Position offset, std::span<const float> inv_freq, float* cosines, float* sines);

Status ShiftKeys(ThreadPool& pool, Workspace& workspace, const LayerKv& layer,
                 std::span<const CellRun> cells, Position offset, const RopeParams& rope);

}  // namespace kvcache::cpu
