// Fails every backend call of every step of random scripts, one per run. The script continues after
// the failure, and the driver compares every cache kind with its reference model throughout.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>

#include "support/cache_driver.h"
#include "support/internal/inspected_causal.h"
#include "support/internal/kinds_random.h"
#include "support/script_random.h"

namespace kvcache::testing::kinds_fault_test {
namespace {

using Call = ReferenceBackend::Call;

Script RandomScript(const DriverSetup& setup, int steps, std::mt19937& random) {
  CacheDriver driver(setup);
  Script script;
  for (int i = 0; i < steps; ++i) {
    script.push_back(RandomStep(setup, driver, random));
    script.back().fail_nth = 0;
    const auto difference = driver.Step(script.back());
    EXPECT_FALSE(difference.has_value()) << *difference << "\n" << ToText(script);
  }
  return script;
}

// Fails the n-th backend call of step `at` and runs the rest. Returns whether there was such a
// call.
bool RunWithFailure(const DriverSetup& setup, Script script, std::size_t at, int n) {
  script[at].fail_call = Call::kAny;
  script[at].fail_nth = n;
  CacheDriver driver(setup);
  bool fired = false;
  for (std::size_t i = 0; i < script.size(); ++i) {
    const auto difference = driver.Step(script[i]);
    if (difference.has_value()) {
      ADD_FAILURE() << ToText(setup) << "\n" << ToText(script) << "→ " << *difference;
      return false;
    }
    if (i == at) fired = driver.last_step_failed();
  }
  EXPECT_FALSE(driver.Finish().has_value());
  return fired;
}

class KindsFaultTest : public ::testing::TestWithParam<TestKind> {};

TEST_P(KindsFaultTest, EveryBackendCallOfRandomScriptsFailsOnce) {
  // Some kinds call the backend rarely and need more scripts.
  constexpr int kMinFailures = 100;
  constexpr int kMaxRounds = 60;
  std::mt19937 random(5);
  int fired = 0;
  for (int round = 0; round < 6 || (fired <= kMinFailures && round < kMaxRounds); ++round) {
    const DriverSetup setup = RandomSetup(GetParam(), random);
    const Script script = RandomScript(setup, 30, random);
    for (std::size_t at = 0; at < script.size(); ++at) {
      for (int n = 1; RunWithFailure(setup, script, at, n); ++n) ++fired;
    }
  }
  EXPECT_GT(fired, kMinFailures);
}

INSTANTIATE_TEST_SUITE_P(Kinds, KindsFaultTest, ::testing::ValuesIn(kAllKinds),
                         [](const auto& test) { return NameOf(test.param); });

DriverSetup FullCache(const CacheOptions& options) {
  return {.options = options,
          .config = {},
          .kind = "causal",
          .make_reference = [](const ReferenceSetup& s) {
            return std::make_unique<InspectedCausal>(s, CausalReferenceOptions{});
          }};
}

// Copies and shifts fail in the middle of a removal in each of the layers.
TEST(CausalFaultTest, EachBackendCallOfASharedMiddleRemoval) {
  const DriverSetup setup = FullCache({DType::kF32, DType::kF16, 2, 8, 4});
  const Script script = ParseScript(
      "forward 0:0 0:1 0:2 0:3\n"
      "copy 0 1 4\n"
      "forward 1:4\n"
      "remove 1 1 2\n"  // copies 2 shared cells, rotates 3, in each of 3 layers
      "forward 0:4 1:0\n"
      "copy 0 1 3\n");
  int n = 1;
  while (RunWithFailure(setup, script, 3, n)) ++n;
  EXPECT_EQ(n - 1, 2 * kTestLayers);
}

TEST(CausalFaultTest, EachBackendCallOfAFirstPut) {
  const DriverSetup setup = FullCache({DType::kBF16, DType::kF32, 1, 4, 2});
  const Script script = ParseScript("forward 0:0 0:1\nremove 0 0 end\nforward 0:0 0:1\n");
  int n = 1;
  while (RunWithFailure(setup, script, 0, n)) ++n;
  // Each layer allocates K and V and stores once; one layer has V in K.
  EXPECT_EQ(n - 1, 3 * kTestLayers - 1);
}

}  // namespace
}  // namespace kvcache::testing::kinds_fault_test
