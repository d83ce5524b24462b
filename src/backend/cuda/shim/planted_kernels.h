// Arguments of the kernels with planted errors, and of their correct twins.
#pragma once

#include <cstdint>

namespace kvcache::cuda {

struct PlantedArgs {
  float* x;      // 1,024 values that are written
  float* y;      // the same, in another allocation
  float* piece;  // 64 values of CallMemory that nobody has written; other pieces lie beside them
  std::uint8_t* bytes;  // 1,024
  const float* wrong;   // memory of the host, or memory that was freed
  int count;            // 1,024
};

}  // namespace kvcache::cuda
