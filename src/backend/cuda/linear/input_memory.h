// How inputs of block-quantised weights are quantised, and the memory that they take, for the host.
//
// Thread safety: pure functions, but for the call's memory. Errors: kOutOfMemory of the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "kvcache/types.h"

namespace kvcache::cuda::linear {

// Inputs that share a scale.
enum class Per : std::uint8_t { k16, k32, k256 };
inline constexpr std::size_t kPers = 3;

// REQUIRES: a block type.
Per PerOf(DType type);

const Kernel& QuantizeKernelOf(Per per);

// The blocks of threads that quantise `tiles` tiles of columns.
std::int64_t QuantizeBlocksOf(std::int64_t inputs, std::int64_t tiles);

TileWords TileWordsOf(std::int64_t inputs, Per per);

// Returns memory for `tiles` tiles of columns.
Result<QuantizedInput> TakeInput(CallMemory& memory, const TileWords& words, std::int64_t tiles);

}  // namespace kvcache::cuda::linear
