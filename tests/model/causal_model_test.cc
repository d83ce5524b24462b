// The causal cache against the naive one: random scripts of every call, on small caches of every
// kind.
//
//   KVCACHE_MODEL_STEPS=1000000  how many steps in all (default 30,000)
//   KVCACHE_MODEL_SEED=7         another seed
//
// A difference is shrunk to the shortest script that still shows it; paste that into
// kRegressions below before mending the bug.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "support/cache_driver.h"
#include "support/script_random.h"

namespace kvcache::testing {
namespace {

constexpr int kStepsPerScript = 120;

std::int64_t FromEnvironment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

std::string Explain(const DriverSetup& setup, const Script& script) {
  const auto fails = [&](const Script& smaller) { return RunScript(setup, smaller).has_value(); };
  const Script shortest = Shrink(script, fails);
  const auto failure = RunScript(setup, shortest);
  return ToText(setup) + "\n" + ToText(shortest) + "→ step " + std::to_string(failure->step + 1) +
         ": " + failure->what;
}

// Counts, so that a generator that stopped reaching something is noticed.
struct Reached {
  std::int64_t steps = 0;
  std::int64_t failures_fired = 0;
  std::int64_t shared_steps = 0;  // steps at whose end some cell is shared
  std::int64_t full_steps = 0;    // steps at whose end no cell is free
};

void Count(const CacheDriver& driver, Reached& reached) {
  const NaiveCache& naive = driver.naive();
  std::int64_t positions = 0;
  for (int s = 0; s < naive.sequences(); ++s) {
    positions += static_cast<std::int64_t>(naive.sequence(s).size());
  }
  ++reached.steps;
  reached.failures_fired += driver.last_step_failed();
  reached.shared_steps += positions > naive.used_cells();
  reached.full_steps += naive.used_cells() == driver.setup().cells();
}

TEST(CausalModelTest, RandomScriptsAgreeWithTheNaiveCache) {
  const std::int64_t steps = FromEnvironment("KVCACHE_MODEL_STEPS", 30000);
  const auto seed = static_cast<unsigned>(FromEnvironment("KVCACHE_MODEL_SEED", 1));
  std::mt19937 random(seed);
  Reached reached;
  while (reached.steps < steps) {
    const DriverSetup setup = RandomSetup(random);
    CacheDriver driver(setup);
    Script script;
    for (int i = 0; i < kStepsPerScript; ++i) {
      script.push_back(RandomStep(setup, driver.naive(), random));
      if (driver.Step(script.back()).has_value()) {
        FAIL() << "seed " << seed << ", after " << reached.steps << " steps:\n"
               << Explain(setup, script);
      }
      Count(driver, reached);
    }
    const auto leak = driver.Finish();
    ASSERT_FALSE(leak.has_value()) << *leak << "\n" << ToText(setup) << "\n" << ToText(script);
  }
  EXPECT_GT(reached.failures_fired * 100, reached.steps);
  EXPECT_GT(reached.shared_steps * 5, reached.steps);
  EXPECT_GT(reached.full_steps * 20, reached.steps);
}

TEST(CausalModelTest, ScriptsSurviveBeingText) {
  std::mt19937 random(3);
  const DriverSetup setup = RandomSetup(random);
  CacheDriver driver(setup);
  Script script;
  for (int i = 0; i < 300; ++i) {
    script.push_back(RandomStep(setup, driver.naive(), random));
    ASSERT_FALSE(driver.Step(script.back()).has_value());
  }
  EXPECT_EQ(ToText(ParseScript(ToText(script))), ToText(script));
}

TEST(CausalModelTest, ShrinkingKeepsWhatMatters) {
  const Script script = ParseScript(
      "forward 0:0 0:1\ncopy 0 1 2\nforward 1:2\nremove 0 0 end\nreserve 0:0 fail any 1\n");
  // "Fails" as soon as sequence 1 holds position 2 and was copied to before.
  const Script shortest = Shrink(script, [](const Script& s) {
    const std::string text = ToText(s);
    const std::size_t copy = text.find("copy 0 1");
    return copy != std::string::npos && text.find("1:2", copy) != std::string::npos;
  });
  EXPECT_EQ(ToText(shortest), "copy 0 1 2\nforward 1:2\n");
}

}  // namespace
}  // namespace kvcache::testing
