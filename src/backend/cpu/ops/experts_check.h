// The rules for the arguments of experts.h's functions, for each backend that has them. Errors name the
// sizes.
//
// Thread safety: all functions are pure; they read no tensor's data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/backend.h"

namespace kvcache::cpu {

// Returns whether the experts are chosen by anything but the order of the logits.
bool IsScored(const RouterOptions& options);

// `experts` and `weights` are the sizes of Route's results.
Status CheckRoute(const TensorView& logits, const RouterOptions& options, std::size_t experts,
                  std::size_t weights);
Status CheckCombine(const TensorView& y, std::span<const std::int32_t> columns,
                    std::span<const float> weights, const TensorView& out);

}  // namespace kvcache::cpu
