// Makes random scripts for any reference model, and shrinks a script that fails.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <functional>
#include <random>
#include <string>

#include "support/cache_driver.h"
#include "support/cache_script.h"

namespace kvcache::testing {

// Returns a number in [low, high].
inline int Between(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}
inline bool Percent(std::mt19937& random, int percent) {
  return Between(random, 1, 100) <= percent;
}

// Returns small random sizes and a random layout; the caller sets `kind` and `make_reference`.
DriverSetup RandomSizes(std::mt19937& random);

// Returns a random step that is mostly valid in the driver's state.
ScriptStep RandomStep(const DriverSetup& setup, const CacheDriver& driver, std::mt19937& random);

// Removes steps, tokens and failures while `fails` returns true. REQUIRES: fails(script).
Script Shrink(Script script, const std::function<bool(const Script&)>& fails);

}  // namespace kvcache::testing
