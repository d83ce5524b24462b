// What a launch needs to know of the transform of keys (block_rows-inl.h).
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/device.h"

namespace kvcache::cuda {

// 1/√size as f32: every value of the matrix. REQUIRES: a power of two.
float HadamardFactor(std::int64_t size);

// The shared memory for a key in f32 for each of `warps` warps. Errors: kUnsupported if the device has less.
Result<std::size_t> HadamardRowsBytes(const Device& device, std::int64_t k_dim, int warps);

}  // namespace kvcache::cuda
