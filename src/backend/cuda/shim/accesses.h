// The checks of a kernel's accesses to memory. They stop the launch at the first error.
//
// Thread safety: called by the threads of a kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/shim/report.h"

namespace kvcache::cuda::shim {

// Checks an access of `bytes` bytes, and records it. `place` is the instruction behind it.
void CheckRead(std::uintptr_t address, std::size_t bytes, std::uintptr_t place);
void CheckWrite(std::uintptr_t address, std::size_t bytes, std::uintptr_t place);

// A copy in the background of 16 bytes begins, or lands.
void CheckCopyBegins(std::uintptr_t shared, std::uintptr_t global, std::uintptr_t place);
void CopyLands(std::uintptr_t shared, std::uintptr_t global, std::uintptr_t place);

}  // namespace kvcache::cuda::shim
