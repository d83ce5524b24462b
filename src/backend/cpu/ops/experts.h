// Routing for mixtures of experts: the choice of each token's experts, and the weighted sum of
// their outputs. kvcache/backend.h defines both functions.
//
// Exactness: a token's experts and weights are functions of its own logits; exponentials are one
// sequence of operations in f32, and sums are in 16 virtual lanes (docs/design/exactness.md). The
// weighted sum is one chain per value: the first product is rounded, then fused multiply-adds follow in
// the order of the choice. Thread safety: one call at a time per pool.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

Status Route(ThreadPool& pool, const TensorView& logits, const RouterOptions& options,
             std::span<std::int32_t> experts, std::span<float> weights);

Status Combine(ThreadPool& pool, const TensorView& y, std::span<const std::int32_t> columns,
               std::span<const float> weights, const TensorView& out);

}  // namespace kvcache::cpu
