// The rules for the arguments of Linear and LinearGroups, for every backend.
//
// Thread safety: pure functions.
#pragma once

#include <span>

#include "kvcache/backend.h"
#include "kvcache/status.h"

namespace kvcache::cpu {

// kInvalidArgument, with both sides, for shapes that do not fit, and for a weight that `is_own` says another
// backend has made, or null.
Status CheckLinearGroups(std::span<const LinearGroup> groups,
                         bool (*is_own)(const LinearWeight* weight));

}  // namespace kvcache::cpu
