// Writing, copying and turning what a cache keeps. CpuBackend's methods of the same names call
// these; kvcache/kv_backend.h says what each must do.
//
// Thread safety: one call at a time per pool and workspace.
#pragma once

#include <span>

#include "backend/cpu/workspace.h"
#include "kvcache/kv_backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout);

// Ok, or what is wrong with a layer's description: types, sizes, missing memory.
Status CheckLayer(const LayerKv& layer);

// Ok, or that [cell, cell + length) is not within the layer; `what` names the call.
Status CheckCells(const LayerKv& layer, const char* what, std::int64_t cell, std::int64_t length);

Status StoreKv(ThreadPool& pool, Workspace& workspace, const LayerKv& layer, const TensorView& k,
               const TensorView& v, std::span<const CellRun> cells);

Status CopyCells(ThreadPool& pool, const LayerKv& layer, std::span<const CellMove> moves);

Status ShiftKeys(ThreadPool& pool, Workspace& workspace, const LayerKv& layer,
                 std::span<const CellRun> cells, Position offset, const RopeParams& rope);

}  // namespace kvcache::cpu
