// Compares every cache kind with its reference model, in random scripts of every call on small
// caches.
//
//   KVCACHE_MODEL_STEPS=1000000  number of steps of each kind (default 10,000; 5,000 over the CPU backend;
//                                100,000 with KVCACHE_SLOW_TESTS)
//   KVCACHE_MODEL_SEED=7         seed of the random numbers (default 1)
//
// A difference is shrunk to the shortest script that still shows it. Keep that script as a
// regression test before you fix the bug.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "kvcache/cpu_backend.h"
#include "support/cache_driver.h"
#include "support/internal/inspected_causal.h"
#include "support/internal/kinds_random.h"
#include "support/internal/random_scripts.h"
#include "support/internal/recurrent_reference.h"
#include "support/kernel_backend.h"
#include "support/script_random.h"

namespace kvcache::testing::kinds_model_test {
namespace {

// Counts situations, so that the test fails if the generator no longer produces some of them.
struct CoverageCounts {
  std::int64_t steps = 0;
  std::int64_t failures_fired = 0;
  std::int64_t shared = 0;  // steps that end with a shared cell
  std::int64_t full = 0;    // steps that end without a free cell
  std::int64_t evicted = 0;
  unsigned ever = 0;  // Coverage bits of all steps

  void Count(const CacheDriver& driver) {
    const unsigned now = driver.reference().coverage();
    ++steps;
    failures_fired += driver.last_step_failed();
    shared += (now & kCoverShared) != 0;
    full += (now & kCoverFull) != 0;
    evicted += (now & kCoverEvicted) != 0;
    ever |= now;
  }
};

class KindsModelTest : public ::testing::TestWithParam<TestKind> {};

TEST_P(KindsModelTest, RandomScriptsAgreeWithTheReferenceModel) {
  CoverageCounts counts;
  const auto difference =
      RunRandomScripts({.kind = GetParam(),
                        .steps = ScriptSteps(10'000),
                        .seed = ScriptSeed(),
                        .after_step = [&](const CacheDriver& driver) { counts.Count(driver); }});
  ASSERT_FALSE(difference.has_value()) << *difference;
  const bool has_cells = GetParam() != TestKind::kEncoder;
  const bool has_states =
      GetParam() == TestKind::kRecurrent || GetParam() == TestKind::kRecurrentAndSliding;
  const bool slides = GetParam() == TestKind::kWindow || GetParam() == TestKind::kRetained ||
                      GetParam() == TestKind::kSlidingAndFull;
  EXPECT_GT(counts.failures_fired * (has_cells ? 100 : 500), counts.steps);
  EXPECT_GT(counts.shared * 10, counts.steps);
  EXPECT_TRUE(!has_cells || counts.full * 100 > counts.steps) << counts.full;
  EXPECT_TRUE(!slides || counts.evicted * 20 > counts.steps) << counts.evicted;
  EXPECT_TRUE(!has_cells || (counts.ever & kCoverBack) != 0);
  const unsigned states = kCoverRestored | kCoverTorn | kCoverForked;
  EXPECT_TRUE(!has_states || (counts.ever & states) == states) << counts.ever;
}

TEST_P(KindsModelTest, RandomScriptsOverTheCpuBackendAgreeWithTheReferenceModel) {
  const auto make_backend = [](unsigned) {
    return std::make_unique<KernelBackend>(std::move(MakeCpuBackend({.threads = 1})).value());
  };
  const auto difference = RunRandomScripts({.kind = GetParam(),
                                            .steps = ScriptSteps(5'000),
                                            .seed = ScriptSeed(),
                                            .make_backend = make_backend});
  ASSERT_FALSE(difference.has_value()) << *difference;
}

// A script that random steps rarely produce.
struct RareScript {
  TestKind kind;
  CacheOptions options;
  CausalReferenceOptions causal;
  const char* script;
  StatusCode last;  // the code that the last step must return
  std::optional<RecurrentReferenceOptions> recurrent{};

  std::unique_ptr<CacheReference> MakeReference(const ReferenceSetup& setup) const {
    if (recurrent.has_value()) return std::make_unique<RecurrentReference>(setup, *recurrent);
    return std::make_unique<InspectedCausal>(setup, causal);
  }
};
const RareScript kRareScripts[] = {
    // The cache is full although a sequence of the batch evicts a token, because another sequence
    // shares its cell. Sequence 2 goes back into gaps, so it holds more than its window keeps.
    {TestKind::kWindow,
     {.max_sequences = 4, .capacity = 40, .max_batch = 8},
     {.window = 1, .retained_tokens = 2},
     "forward 0:0 0:1\n"
     "copy 0 1 2\n"
     "forward 2:20 2:21 2:22 2:23 2:24 2:25 2:26 2:27\n"
     "forward 2:10 2:11 2:12 2:13 2:14 2:15\n"
     "forward 0:10 2:2\n",
     StatusCode::kCacheFull},
    // A middle removal must copy two shared cells, and only one is free.
    {TestKind::kFull,
     {.max_sequences = 2, .capacity = 3, .max_batch = 3},
     {},
     "forward 0:0 0:1 0:2\n"
     "copy 0 1 3\n"
     "forward 0:3 0:4\n"
     "remove 1 0 1\n",
     StatusCode::kCacheFull},
    // A split inside a page of host memory: both parts restore their tokens.
    {TestKind::kFull,
     {.max_sequences = 2, .capacity = 8, .max_batch = 4},
     {},
     "forward 0:0 0:1 0:2 0:3\n"
     "snapshot 0 0 4 1\n"
     "materialize 1\n"
     "split 1 2 2\n"
     "bring 1 2 1\n"
     "bring 1 4 2\n",
     StatusCode::kOk},
    // Snapshots hold all states but those that the zeros, the sequence and one pass need. The last pass
    // materialises the oldest.
    {TestKind::kRecurrent,
     {.max_sequences = 1, .capacity = 8, .max_batch = 2},
     {},
     "forward 0:0\n"
     "snapshot 0 0 1 1\n"
     "forward 0:1\n"
     "snapshot 0 1 2 2\n"
     "forward 0:2\n"
     "snapshot 0 2 3 3\n"
     "forward 0:3\n"
     "forward 0:4\n",
     StatusCode::kOk,
     RecurrentReferenceOptions{.attention = {}, .snapshot_states = 0, .checkpoints = {.count = 0}}},
};

TEST_P(KindsModelTest, RareScriptsAgreeWithTheReferenceModel) {
  for (const RareScript& rare : kRareScripts) {
    if (rare.kind != GetParam()) continue;
    DriverSetup setup;
    setup.options = rare.options;
    setup.make_reference = [&](const ReferenceSetup& reference) {
      return rare.MakeReference(reference);
    };
    CacheDriver driver(setup);
    const Script script = ParseScript(rare.script);
    for (std::size_t i = 0; i + 1 < script.size(); ++i) {
      ASSERT_EQ(driver.Step(script[i]), Difference()) << i;
      ASSERT_EQ(driver.last_status(), StatusCode::kOk) << i;
    }
    EXPECT_EQ(driver.Step(script.back()), Difference());
    EXPECT_EQ(driver.last_status(), rare.last);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, KindsModelTest, ::testing::ValuesIn(kAllKinds),
                         [](const auto& test) { return NameOf(test.param); });

TEST(ScriptTest, ScriptsRoundTripThroughText) {
  std::mt19937 random(3);
  const DriverSetup setup = RandomSetup(TestKind::kFull, random);
  CacheDriver driver(setup);
  Script script;
  for (int i = 0; i < 300; ++i) {
    script.push_back(RandomStep(setup, driver, random));
    ASSERT_FALSE(driver.Step(script.back()).has_value());
  }
  EXPECT_EQ(ToText(ParseScript(ToText(script))), ToText(script));
}

TEST(ScriptTest, ShrinkingKeepsTheStepsThatFail) {
  const Script script = ParseScript(
      "forward 0:0 0:1\ncopy 0 1 2\nforward 1:2\nremove 0 0 end\nreserve 0:0 fail any 1\n");
  // A script fails if sequence 1 holds position 2 and was copied to before.
  const Script shortest = Shrink(script, [](const Script& s) {
    const std::string text = ToText(s);
    const std::size_t copy = text.find("copy 0 1");
    return copy != std::string::npos && text.find("1:2", copy) != std::string::npos;
  });
  EXPECT_EQ(ToText(shortest), "copy 0 1 2\nforward 1:2\n");
}

}  // namespace
}  // namespace kvcache::testing::kinds_model_test
