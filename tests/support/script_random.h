// Random scripts, and the shortest script that still fails.
#pragma once

#include <functional>
#include <random>

#include "support/cache_driver.h"
#include "support/cache_script.h"

namespace kvcache::testing {

// A small cache of any kind.
DriverSetup RandomSetup(std::mt19937& random);

// A step that makes sense, mostly, for the state that `naive` is in.
ScriptStep RandomStep(const DriverSetup& setup, const NaiveCache& naive, std::mt19937& random);

// Drops steps and tokens for as long as `fails` says true. REQUIRES: fails(script).
Script Shrink(Script script, const std::function<bool(const Script&)>& fails);

}  // namespace kvcache::testing
