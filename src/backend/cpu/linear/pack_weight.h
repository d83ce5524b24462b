// Packs a weight of a block type into panels.
//
// Thread safety: as linear.h says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/linear/weight_memory.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// The version of the layout of panels (common/block_layout.h), which is the same for all processors. Files keep panels:
// raise it when PackPanel writes other bytes; kept_panels_test.cc notices.
inline constexpr std::uint32_t kPanelLayout = 1;

// Returns the bytes of all panels of `w`, a matrix or a stack.
std::size_t PanelBytesOf(const TensorView& w);

// Packs all rows of `w`, dense. Errors: kOutOfMemory; kCorrupt for a scale that no kernel multiplies with.
Result<WeightPiece> PackWeight(ThreadPool& pool, WeightMemory& memory, const TensorView& w);

}  // namespace kvcache::cpu
