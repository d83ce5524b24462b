// Attention over a cache's cells, for CpuBackend::Attention. kvcache/kv_backend.h defines what it
// computes, docs/design/exactness.md the order of the operations.
//
// Thread safety: one call at a time per pool, workspace and plans. The plans keep their memory from
// call to call, like the workspace.
#pragma once

#include "backend/cpu/attention/attention_plans.h"
#include "backend/cpu/common/workspace.h"
#include "kvcache/kv_backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// Errors: those of CheckAttention, and kOutOfMemory.
Status Attention(ThreadPool& pool, Workspace& workspace, AttentionPlans& plans,
                 const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                 const AttentionOptions& options, const TensorView& out);

}  // namespace kvcache::cpu
