#include "support/internal/random_scripts.h"

#include <cstdlib>
#include <random>

#include "support/script_random.h"

namespace kvcache::testing {
namespace {

constexpr int kStepsPerScript = 120;

std::string Explain(const DriverSetup& setup, const Script& script) {
  const auto fails = [&](const Script& smaller) { return RunScript(setup, smaller).has_value(); };
  // What depends on an address may not happen again.
  if (!fails(script)) return ToText(setup) + "\n" + ToText(script) + "→ not when run again";
  const Script shortest = Shrink(script, fails);
  const auto failure = RunScript(setup, shortest);
  return ToText(setup) + "\n" + ToText(shortest) + "→ step " + std::to_string(failure->step + 1) +
         ": " + failure->what;
}

}  // namespace

std::int64_t ScriptSteps(std::int64_t few) {
  if (const char* const steps = std::getenv("KVCACHE_MODEL_STEPS")) return std::atoll(steps);
  return std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 100'000 : few;
}

unsigned ScriptSeed() {
  const char* const seed = std::getenv("KVCACHE_MODEL_SEED");
  return seed != nullptr ? static_cast<unsigned>(std::atoll(seed)) : 1;
}

std::optional<std::string> RunRandomScripts(const RandomScripts& scripts) {
  std::mt19937 random(scripts.seed);
  const auto where = [&](std::int64_t steps) {
    return "seed " + std::to_string(scripts.seed) + ", after " + std::to_string(steps) +
           " steps:\n";
  };
  for (std::int64_t steps = 0; steps < scripts.steps;) {
    DriverSetup setup = RandomSetup(scripts.kind, random);
    if (scripts.make_backend) {
      setup.make_backend = [&scripts, seed = static_cast<unsigned>(random())] {
        return scripts.make_backend(seed);
      };
    }
    CacheDriver driver(setup);
    Script script;
    for (int i = 0; i < kStepsPerScript; ++i, ++steps) {
      script.push_back(RandomStep(setup, driver, random));
      if (const Difference difference = driver.Step(script.back())) {
        return where(steps) + *difference + "\n" + Explain(setup, script);
      }
      if (scripts.after_step) scripts.after_step(driver);
    }
    if (const Difference leak = driver.Finish()) {
      return where(steps) + *leak + "\n" + ToText(setup) + "\n" + ToText(script);
    }
  }
  return {};
}

}  // namespace kvcache::testing
