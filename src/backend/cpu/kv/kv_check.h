// The rules for the arguments of calls over a cache's cells, for each backend that has them. Errors name
// the sizes.
//
// Thread safety: all functions are pure; they read no tensor's data.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/kv_backend.h"

namespace kvcache::cpu {

// kUnsupported unless there are kernels for these types in this layout.
Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout);

// Checks a layer's description: kUnsupported for types, kInvalidArgument for sizes and missing
// memory.
Status CheckLayer(const LayerKv& layer);

// kInvalidArgument unless [cell, cell + length) is within the layer; `what` names the operation.
Status CheckCells(const LayerKv& layer, const char* what, std::int64_t cell, std::int64_t length);

// For the calls of these names; a transfer is a copy too.
Status CheckStore(const LayerKv& layer, const TensorView& k, const TensorView& v,
                  std::span<const CellRun> cells);
Status CheckTransfer(const LayerKv& from, const LayerKv& to, std::span<const CellMove> moves);
Status CheckShift(const LayerKv& layer, std::span<const CellRun> cells, const RopeParams& rope);

}  // namespace kvcache::cpu
