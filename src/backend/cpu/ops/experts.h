// What a mixture of experts needs beside linear layers: choosing each token's experts, and the
// weighted sum of what they answered. kvcache/backend.h says what each computes.
//
// Exactness: a token's choice and weights are functions of its own logits (exponentials and sums
// in double, ascending by expert, rounded once); the weighted sum is one chain per value: the
// first product rounded, then fused multiply-adds in the order of the choice.
// Thread safety: one call at a time per pool.
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
