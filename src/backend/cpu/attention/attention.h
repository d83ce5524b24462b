// Attention over a cache's cells; CpuBackend::Attention calls it. kvcache/kv_backend.h says what
// it computes, docs/design/exactness.md in which order.
//
// Thread safety: one call at a time per pool, workspace and plan. The plan is memory that is kept
// from call to call, like the workspace.
#pragma once

#include "backend/cpu/attention/attention_plan.h"
#include "backend/cpu/workspace.h"
#include "kvcache/kv_backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

Status Attention(ThreadPool& pool, Workspace& workspace, AttentionPlan& plan, const LayerKv& layer,
                 const TensorView& q, const Visibility& visibility, const AttentionOptions& options,
                 const TensorView& out);

}  // namespace kvcache::cpu
