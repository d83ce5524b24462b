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

// kUnsupported unless there are kernels for these types in this layout.
Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout);

// Checks a layer's description: kUnsupported for types, kInvalidArgument for sizes and missing
// memory.
Status CheckLayer(const LayerKv& layer);

// kInvalidArgument unless [cell, cell + length) is within the layer; `what` names the operation.
Status CheckCells(const LayerKv& layer, const char* what, std::int64_t cell, std::int64_t length);

Status StoreKv(ThreadPool& pool, Workspace& workspace, const LayerKv& layer, const TensorView& k,
               const TensorView& v, std::span<const CellRun> cells);

Status CopyCells(ThreadPool& pool, const LayerKv& layer, std::span<const CellMove> moves);

Status TransferCells(ThreadPool& pool, const LayerKv& from, const LayerKv& to,
                     std::span<const CellMove> moves);

Status ShiftKeys(ThreadPool& pool, Workspace& workspace, const LayerKv& layer,
                 std::span<const CellRun> cells, Position offset, const RopeParams& rope);

}  // namespace kvcache::cpu
