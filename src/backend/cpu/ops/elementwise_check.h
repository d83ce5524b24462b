// The rules for the arguments of elementwise.h's functions, for each backend that has them. Errors name
// the shapes.
//
// Thread safety: all functions are pure; they read no tensor's data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache::cpu {

Status CheckEmbed(const TensorView& table, std::span<const std::int32_t> tokens,
                  const TensorView& y);
// The same without the numbers of `count` rows.
Status CheckEmbedShapes(const TensorView& table, std::int64_t count, const TensorView& y);
Status CheckRmsNorm(const TensorView& x, const TensorView& weight, const TensorView& y);
Status CheckCenter(const TensorView& x, const TensorView& y);
Status CheckSoftCap(const TensorView& x, float cap);
Status CheckAddBias(const TensorView& x, const TensorView& bias);
Status CheckScaleColumns(const TensorView& x, std::size_t factors);

// For operations element by element: dense f32 (of one shape).
Status CheckDense(std::string_view operation, const TensorView& x);
Status CheckSameShape(std::string_view operation, const TensorView& a, const TensorView& b);

// Returns whether Multiply has a factor per column.
bool MultipliesColumns(const TensorView& x, const TensorView& y);

}  // namespace kvcache::cpu
