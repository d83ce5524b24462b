// Linear layers: y = W x, for weights as model files hold them.
//
// Exactness: each output is one chain over K, the same for every batch, tile and thread count;
// docs/design/exactness.md writes the chains down.
// Thread safety: one call at a time per pool and workspace; weights as linear_weight.h says.
#pragma once

#include <memory>
#include <span>

#include "backend/cpu/common/workspace.h"
#include "backend/cpu/linear/weight_memory.h"
#include "kvcache/backend.h"
#include "kvcache/panel_store.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// Returns the error that MakeLinear would return for w's type and dims: kUnsupported for types
// without kernels, kInvalidArgument for matrices that are not dense or no whole blocks.
Status CheckLinear(const TensorView& w);
// `store`: where panels are taken from and kept; null: nowhere.
Result<std::unique_ptr<LinearWeight>> MakeLinear(
    ThreadPool& pool, WeightMemory& memory, const TensorView& w,
    const std::shared_ptr<PanelStore>& store = nullptr);

// Computes all groups in one parallel region; kvcache/backend.h defines them. kInvalidArgument for
// shapes that do not fit, kOutOfMemory.
Status LinearGroups(ThreadPool& pool, Workspace& workspace, std::span<const LinearGroup> groups);

}  // namespace kvcache::cpu
