// The operations on activations between a model's linear layers. CpuBackend's methods of the same
// names call these functions; kvcache/backend.h defines them.
//
// Exactness: RMS norms sum in the 16 virtual lanes of docs/design/exactness.md. All else is
// computed element by element; an element's result does not depend on its lane. Thread safety: one
// call at a time per pool.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

Status Embed(ThreadPool& pool, const TensorView& table, std::span<const std::int32_t> tokens,
             const TensorView& y);

Status RmsNorm(ThreadPool& pool, const TensorView& x, const TensorView& weight, float epsilon,
               const TensorView& y);

Status Center(ThreadPool& pool, const TensorView& x, const TensorView& y);

Status Xielu(ThreadPool& pool, const TensorView& x, const XieluParams& params);

Status Gate(ThreadPool& pool, const TensorView& gate, const TensorView& up, Activation activation);

Status GateClamped(ThreadPool& pool, const TensorView& gate, const TensorView& up, float alpha,
                   float limit);

Status Activate(ThreadPool& pool, const TensorView& x, Activation activation);

Status Scale(ThreadPool& pool, const TensorView& x, float factor);

Status SoftCap(ThreadPool& pool, const TensorView& x, float cap);

Status Add(ThreadPool& pool, const TensorView& x, const TensorView& y);

Status Multiply(ThreadPool& pool, const TensorView& x, const TensorView& y);

Status AddBias(ThreadPool& pool, const TensorView& x, const TensorView& bias);

Status ScaleColumns(ThreadPool& pool, const TensorView& x, std::span<const float> factors);

}  // namespace kvcache::cpu
