// The choice of the instruction set (Highway's target) at run time.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache::cpu {

// Makes all kernels use target `name` from now on; "" selects the best one of the machine. Returns
// kInvalidArgument, with the names to choose from, if the name is unknown or the machine lacks the
// target. REQUIRES: no kernel is running. For tests and comparisons.
Status UseCpuTarget(std::string_view name);

// Calls UseCpuTarget($KVCACHE_CPU_TARGET) once per process; later calls return the result of the
// first. Thread-safe.
Status UseCpuTargetFromEnvironment();

// How linear layers over block types multiply bytes, and on Arm attention over block types too. Highway's target has one way of its own. Targets of this library
// are a target of Highway's with another way.
enum class ByteProducts : std::uint8_t {
  kOfTarget,
  kFours,   // four bytes at once: AVX_VNNI is AVX2, NEON_DOTPROD is NEON
  kMatrix,  // two rows with two tokens: NEON_I8MM is NEON
};

// The way of the target in use.
ByteProducts ByteProductsInUse();

}  // namespace kvcache::cpu
