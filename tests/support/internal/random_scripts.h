// Runs random scripts of every call on small caches of a kind, beside its reference model.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "support/cache_driver.h"
#include "support/internal/kinds_random.h"

namespace kvcache::testing {

struct RandomScripts {
  TestKind kind = TestKind::kFull;
  std::int64_t steps = 0;  // in all scripts together; the last script ends behind them
  unsigned seed = 1;
  // Makes a script's backend from a seed of the script's own; empty: a ReferenceBackend. Equal seeds make equal backends.
  std::function<std::unique_ptr<ReferenceBackend>(unsigned seed)> make_backend{};
  // Is called after each step; may be empty.
  std::function<void(const CacheDriver&)> after_step{};
};

// Returns the number of steps to run: that of the environment variable KVCACHE_MODEL_STEPS, else 100,000 if
// KVCACHE_SLOW_TESTS is set, else `few`.
std::int64_t ScriptSteps(std::int64_t few);
// Returns the seed in KVCACHE_MODEL_SEED; without it: 1.
unsigned ScriptSeed();

// Returns the first difference with the shortest script that still shows it, or nothing.
std::optional<std::string> RunRandomScripts(const RandomScripts& scripts);

}  // namespace kvcache::testing
