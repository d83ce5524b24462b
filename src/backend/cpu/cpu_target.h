// The choice of the instruction set at run time.
#pragma once

#include <string_view>

#include "kvcache/status.h"

namespace kvcache::cpu {

// Kernels run with target `name` from now on; "" stands for the best that the machine has.
// kInvalidArgument, with the names that would do, when the name is unknown or the machine lacks
// it. Not to be called while kernels run; tests and comparisons use it.
Status UseCpuTarget(std::string_view name);

// UseCpuTarget($KVCACHE_CPU_TARGET), once per process; later calls return the first one's
// result. May be called from any thread.
Status UseCpuTargetFromEnvironment();

}  // namespace kvcache::cpu
