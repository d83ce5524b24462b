// How long a prompt that is read holds up others, on a machine whose time is computed: a pass takes a time for its
// weights, one for each token, and one for each pair of a token and one that it sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cpu_backend.h"
#include "support/failing_backend.h"
#include "support/scheduler_fixture.h"

namespace kvcache::scheduler_pace_test {
namespace {

// Seconds of a pass of the simulated machine.
struct Costs {
  double pass = 0.003;
  double token = 0.001;
  double pair = 1e-6;
};

// Computes as the backend within does. The first attention of a pass moves the clock.
class TimedBackend final : public testing::FailingBackend {
 public:
  explicit TimedBackend(std::unique_ptr<Backend> inner) : FailingBackend(std::move(inner)) {}

  Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                   const AttentionOptions& options, const TensorView& out) override {
    if (std::exchange(pass_begins_, false)) {
      double seconds = costs.pass;
      for (const Position position : visibility.positions) {
        seconds += costs.token + costs.pair * (position + 1);
      }
      now_ += pace_() * seconds;
    }
    return FailingBackend::Attention(layer, q, visibility, options, out);
  }

  // The scheduler reads the clock before each pass.
  double ReadClock() {
    pass_begins_ = true;
    return now_;
  }
  double now() const { return now_; }
  // Replaces a factor of all passes, which is 1.
  void SetPace(std::function<double()> pace) { pace_ = std::move(pace); }
  Costs costs{};

 private:
  double now_ = 0.0;
  bool pass_begins_ = false;
  std::function<double()> pace_ = [] { return 1.0; };
};

// Keeps a text from its end.
class NoEnd final : public TokenConstraint {
 public:
  explicit NoEnd(const Engine& engine) : engine_(engine) {}
  bool Apply(std::span<float> logits) override {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (engine_.IsEndOfGeneration(static_cast<std::int32_t>(i))) logits[i] = -1e30f;
    }
    return true;
  }
  bool Take(std::int32_t) override { return true; }
  bool complete() const override { return false; }

 private:
  const Engine& engine_;
};

class SchedulerPaceTest : public SchedulerFixture {
 protected:
  static constexpr int kLongContext = 4096;
  static constexpr double kStep = 0.1;  // SchedulerOptions::step_ms

  void StartTimed(int sequences, SchedulerOptions options = {}) {
    auto backend = std::make_unique<TimedBackend>(*MakeCpuBackend({.threads = 2}));
    machine_ = backend.get();
    options.clock = [this] { return machine_->ReadClock(); };
    StartWith({.threads = 2,
               .context = kLongContext,
               .max_sequences = sequences,
               .pool_tokens = 3 * kLongContext,
               .prefill_chunk = 512},
              std::move(options), std::move(backend));
    alone_ = Open({.threads = 2, .context = kLongContext});
  }

  // Requests that generate until `stop` is true. `gaps_` gets the times between their tokens.
  void Decode(int count) {
    for (int i = 0; i < count; ++i) {
      ScheduledRequest request;
      request.constraint = std::make_shared<NoEnd>(*engine_);
      double last = 0.0;
      request.on_token = [this, last](std::int32_t) mutable {
        if (last > 0.0) gaps_.push_back(machine_->now() - last);
        last = machine_->now();
        return !stop_;
      };
      Ask(SomeTokens(5, 3 + i), 3000, std::move(request));
    }
    for (int i = 0; i < 20 + count; ++i) ASSERT_TRUE(*scheduler_->Step());
    own_ = gaps_.back();
    gaps_.clear();
  }

  // Returns how many tokens of its prompt a request has read.
  Position Read(const Asked& asked) const {
    for (const RequestState& state : scheduler_->Requests()) {
      if (state.id == asked.result.id) return std::min(state.evaluated, state.prompt);
    }
    return asked.done ? static_cast<Position>(asked.prompt.size()) : 0;
  }

  double LongestGap() const { return *std::max_element(gaps_.begin(), gaps_.end()); }

  TimedBackend* machine_ = nullptr;
  std::vector<double> gaps_;
  double own_ = 0.0;  // seconds of a pass of decodes
  bool stop_ = false;
};

TEST_P(SchedulerPaceTest, DecodesWaitForAPartOfAPromptOfTheStepsTime) {
  StartTimed(8);
  Decode(6);
  const double start = machine_->now();
  const Asked& late = Ask(SomeTokens(3000), 1);
  int without = 0;
  std::size_t steps = 0;
  double alone = 0.0;  // seconds of the prompt's tokens
  while (!late.done) {
    const Position before = Read(late);
    ASSERT_TRUE(*scheduler_->Step());
    const Position read = Read(late) - before;
    without += read == 0 ? 1 : 0;
    EXPECT_TRUE(read == 0 || read >= 16 || Read(late) == 3000) << read;
    ++steps;
  }
  for (Position at = 0; at < 3000; ++at) alone += machine_->costs.token + machine_->costs.pair * at;
  const double took = machine_->now() - start;
  EXPECT_LE(LongestGap(), own_ * 1.05 + kStep * 1.1);
  EXPECT_LE(took, 1.1 * (alone + static_cast<double>(steps) * own_)) << "no time is lost";
  EXPECT_LE(steps, 3.0 * alone / kStep) << "chunks are not smaller than they need be";
  EXPECT_LE(without, 1 + static_cast<int>(steps) / 30);
  stop_ = true;
  RunAll();
  for (const auto& asked : asked_) ExpectExact(*asked);
}

TEST_P(SchedulerPaceTest, AtLeastSixteenTokensAreReadHoweverSlowTheMachineIs) {
  StartTimed(4);
  machine_->costs = {.pass = 0.5, .token = 0.05};
  Decode(2);
  const Asked& late = Ask(SomeTokens(400), 1);
  int steps = 0;
  for (; !late.done; ++steps) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_LE(steps, 400 / 16 + 3);
  EXPECT_LE(LongestGap(), own_ * 1.05 + 16 * 0.051);
}

TEST_P(SchedulerPaceTest, APromptAloneIsReadInLargeChunks) {
  StartTimed(4);
  machine_->costs = {.pass = 0.5, .token = 0.05};
  const Asked& only = Ask(SomeTokens(2000), 1);
  RunAll();
  const std::string family = GetParam();
  const int chunk = family.starts_with("llama") ? 512 : 6 * 32;  // a pass has six captures at most
  EXPECT_LE(scheduler_->Stats().passes, 2000 / chunk + 1);
  ExpectExact(only);
}

TEST_P(SchedulerPaceTest, AShortPromptGoesBeforeTheRestOfALongOne) {
  StartTimed(8);
  Decode(4);
  const Asked& late = Ask(SomeTokens(3000), 1);
  while (Read(late) < 1000) ASSERT_TRUE(*scheduler_->Step());
  const double start = machine_->now();
  bool first = false;
  ScheduledRequest request;
  request.on_token = [&](std::int32_t) { return first = true; };
  const Asked& brief = Ask(SomeTokens(40, 9), 2, std::move(request));
  for (int steps = 0; !first; ++steps) {
    ASSERT_LT(steps, 5);
    ASSERT_TRUE(*scheduler_->Step());
  }
  EXPECT_LE(machine_->now() - start, 4 * (own_ + kStep));
  EXPECT_FALSE(late.done);
  EXPECT_LE(LongestGap(), own_ * 1.05 + kStep * 1.1);
  stop_ = true;
  RunAll();
  ExpectExact(late);
  ExpectExact(brief);
}

// New short prompts in every step do not keep a long one from its end.
TEST_P(SchedulerPaceTest, ALongPromptContinuesAmongShortOnes) {
  StartTimed(8);
  Decode(1);
  const Asked& late = Ask(SomeTokens(1500), 1);
  int steps = 0;
  for (; !late.done; ++steps) {
    ASSERT_LT(steps, 400);
    if (scheduler_->waiting() < 3) Ask(SomeTokens(60, 4 + steps % 200), 1);
    ASSERT_TRUE(*scheduler_->Step());
  }
  EXPECT_GT(steps, 20);
  std::size_t done = 0;
  for (const auto& asked : asked_) done += asked->done && asked.get() != &late ? 1 : 0;
  EXPECT_GT(done, 20U) << "and short ones continue beside it";
}

// What takes most of the first passes, or of a single one, does not make the others long.
TEST_P(SchedulerPaceTest, OnePassThatWasSlowChangesLittle) {
  StartTimed(4);
  int passes = 0;
  machine_->SetPace([&] { return passes++ == 0 ? 100.0 : 1.0; });
  Decode(2);
  const Asked& late = Ask(SomeTokens(3000), 1);
  while (Read(late) < 600) ASSERT_TRUE(*scheduler_->Step());
  machine_->SetPace([&] { return 100.0; });
  ASSERT_TRUE(*scheduler_->Step());
  machine_->SetPace([] { return 1.0; });
  gaps_.clear();
  int steps = 0;
  for (; !late.done; ++steps) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_LT(steps, 120);
  gaps_.erase(gaps_.begin(), gaps_.begin() + 2);  // the slow pass
  EXPECT_LE(LongestGap(), own_ * 1.05 + kStep * 1.1);
}

TEST_P(SchedulerPaceTest, AMachineThatBecomesBusyHasShorterChunksWithinAFewPasses) {
  StartTimed(4);
  machine_->costs = {.pass = 0.003, .token = 0.0004, .pair = 3e-7};
  Decode(2);
  const Asked& late = Ask(SomeTokens(3500), 1);
  while (Read(late) < 1000) ASSERT_TRUE(*scheduler_->Step());
  machine_->SetPace([] { return 4.0; });
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(*scheduler_->Step());
  gaps_.clear();
  while (Read(late) < 2000) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_LE(LongestGap(), 4 * own_ + kStep * 1.3);
  machine_->SetPace([] { return 1.0; });
  int steps = 0;
  for (; !late.done; ++steps) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_LT(steps, 80) << "and longer ones again when it is idle";
}

// Times that jump make chunks of any size. Bits do not depend on them.
TEST_P(SchedulerPaceTest, ChunksOfAnySizeGiveTheSameBits) {
  StartTimed(6, {.look_up_drafts = true});
  std::mt19937 random(static_cast<unsigned>(engine_->vocabulary_size()));
  machine_->SetPace([&] { return static_cast<double>(1U << random() % 8) / 8; });
  Decode(2);
  for (int i = 0; i < 6; ++i) {
    ScheduledRequest request;
    request.restore_points = {50, 100};
    Ask(SomeTokens(100 + static_cast<int>(random() % 700), 4 + i), 8, std::move(request));
    for (auto steps = random() % 10; steps > 0; --steps) ASSERT_TRUE(*scheduler_->Step());
  }
  while (std::any_of(asked_.begin() + 2, asked_.end(),
                     [](const auto& asked) { return !asked->done; })) {
    ASSERT_TRUE(*scheduler_->Step());
  }
  stop_ = true;
  RunAll();
  for (const auto& asked : asked_) {
    ASSERT_TRUE(asked->result.status.ok()) << asked->result.status.message();
    ExpectExact(*asked);
  }
}

// What two prompts share is known as soon as the first has read it, not when it has read all.
TEST_P(SchedulerPaceTest, APromptThatSharesABeginningDoesNotWaitForTheRestOfALongOne) {
  StartTimed(4);
  Tokens text = SomeTokens(3000);
  const Asked& late = Ask(text, 1);
  ASSERT_TRUE(*scheduler_->Step());
  ASSERT_TRUE(*scheduler_->Step());
  text.resize(100);
  text.push_back(200);
  const Asked& brief = Ask(text, 1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_TRUE(brief.done);
  EXPECT_FALSE(late.done);
  EXPECT_GE(brief.result.reuse.restored, 100 - 32);
  RunAll();
  ExpectExact(late);
  ExpectExact(brief);
  ExpectNothingLeaks();
}

TEST_P(SchedulerPaceTest, TheStepsTimeHasARange) {
  StartTimed(1);
  for (const int step_ms : {0, -1, 3'600'001}) {
    EXPECT_EQ(Scheduler::Make(*engine_, {.step_ms = step_ms}).status().message(),
              "a step's prompts add " + std::to_string(step_ms) + " ms; must be in [1, 3600000]");
  }
  EXPECT_TRUE(Scheduler::Make(*engine_, {.step_ms = 1}).ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerPaceTest,
                         ::testing::Values("llama", "gemma3", "gemma3n", "llama4", "qwen3next",
                                           "lfm2", "lfm2_window", "qwen35", "falcon-h1",
                                           "nemotron_h"),  // time passes in attention
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvcache::scheduler_pace_test
