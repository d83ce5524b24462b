// Four neighboring floats, which a thread loads and stores at once, and the rule for where it may.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace kvcache::cuda {

struct alignas(16) Four {
  float v[4];
};

// Returns whether vectors of four may begin at `values` and at every multiple of `stride` floats behind it.
inline bool HoldsVectors(const float* values, std::int64_t stride = 0) {
  return reinterpret_cast<std::uintptr_t>(values) % sizeof(Four) == 0 && stride % 4 == 0;
}

}  // namespace kvcache::cuda
