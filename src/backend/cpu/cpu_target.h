// The choice of the instruction set (Highway's target) at run time.
#pragma once

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

// Whether the kernels of AVX2 use AVX-VNNI: the target is AVX_VNNI. The processor has it and not the
// AVX-512 kernels, or they were not chosen.
bool IsAvxVnniInUse();

}  // namespace kvcache::cpu
