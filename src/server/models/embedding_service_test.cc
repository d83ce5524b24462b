// Tests the queue of embeddings: turns, cancelled requests, counters.
#include "server/models/embedding_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvcache_engine/engine.h"
#include "kvcache_engine/scheduler.h"
#include "server/embedder_testing.h"

namespace kvcache::server::embedding_service_test {
namespace {

using ::testing::ElementsAre;

// What a request came to.
class Ended {
 public:
  std::function<void(const EmbeddingResult&)> Function() {
    return [this](const EmbeddingResult& result) {
      const std::lock_guard lock(mutex_);
      result_ = result;
      done_.notify_all();
    };
  }
  EmbeddingResult Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return result_.has_value(); });
    return *result_;
  }
  bool is_done() {
    const std::lock_guard lock(mutex_);
    return result_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<EmbeddingResult> result_;
};

class EmbeddingServiceTest : public ::testing::Test {
 protected:
  void Start(EmbeddingServiceOptions options = {}) {
    service_ = EmbeddingService::Make(embedder_, options);
  }
  EmbeddingId Submit(std::vector<std::vector<std::int32_t>> inputs, Ended& ended,
                     bool ranks = false) {
    auto id = service_->Submit({.inputs = std::move(inputs),
                                .ranks = ranks,
                                .normalize = false,
                                .on_done = ended.Function()});
    EXPECT_TRUE(id.ok()) << id.status().message();
    return *id;
  }

  std::shared_ptr<SimpleEmbedder> embedder_ = std::make_shared<SimpleEmbedder>();
  std::unique_ptr<EmbeddingService> service_;
};

// A later part of a request counts its inputs from the request's first one.
TEST_F(EmbeddingServiceTest, ErrorsOfLaterPartsNameTheInput) {
  Start({.step_ms = 1});
  embedder_->microseconds = 20'000;  // of one input: a part behind the first has few
  std::vector<std::vector<std::int32_t>> inputs(40, std::vector<std::int32_t>(200, 1));
  inputs[37] = {};
  Ended ended, other;
  Submit(std::move(inputs), ended);
  Submit({{1}}, other);
  EXPECT_EQ(ended.Wait().status.message(), "input 37 has no tokens");
  other.Wait();
  EXPECT_GE(embedder_->calls, 3) << "the request was computed in one part";
}

TEST_F(EmbeddingServiceTest, VectorsComeInOrder) {
  Start();
  Ended ended;
  Submit({{1, 2}, {3}, {4, 5, 6}}, ended);
  const EmbeddingResult result = ended.Wait();
  EXPECT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.dimensions, 4);
  EXPECT_EQ(result.tokens, 6);
  EXPECT_THAT(result.values, ElementsAre(2, 1, 2, 3, 1, 3, 3, 3, 3, 4, 6, 15));
  EXPECT_EQ(service_->counters().evaluated_tokens, 6);
  EXPECT_EQ(service_->counters().held_bytes, 1000);
  EXPECT_EQ(service_->context(), SimpleEmbedder::kMaxTokens);
}

TEST_F(EmbeddingServiceTest, AnErrorEndsItsRequestAlone) {
  Start();
  Ended wrong;
  Ended right;
  Submit({{1}, {}}, wrong);
  Submit({{1}}, right);
  EXPECT_EQ(wrong.Wait().status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(right.Wait().status.ok());
  Ended ranks;
  Submit({{1}}, ranks, true);
  EXPECT_THAT(ranks.Wait().values, ElementsAre(1));
}

TEST_F(EmbeddingServiceTest, ACancelledRequestEndsAtOnce) {
  embedder_->waits = true;
  Start();
  Ended running;
  Ended waiting;
  Ended other;
  const EmbeddingId first = Submit({{1}}, running);
  const EmbeddingId second = Submit({{2}}, waiting);
  Submit({{3}}, other);
  service_->Cancel(second);
  service_->Cancel(first);
  EXPECT_EQ(running.Wait().status.code(), StatusCode::kCancelled);
  EXPECT_EQ(waiting.Wait().status.code(), StatusCode::kCancelled);
  EXPECT_FALSE(other.is_done());
  EXPECT_FALSE(service_->idle());
  embedder_->waits = false;
  EXPECT_TRUE(other.Wait().status.ok());
  service_->Cancel(first);  // has ended
}

TEST_F(EmbeddingServiceTest, RequestsAreBoundedAndEnd) {
  embedder_->waits = true;
  Start({.max_running = 2});
  Ended first;
  Ended second;
  Submit({{1}}, first);
  Submit({{2}}, second);
  EXPECT_EQ(service_->Submit({.inputs = {{3}}}).status().code(), StatusCode::kCacheFull);
  EXPECT_EQ(service_->counters().running, 2);
  service_->EndAll();
  EXPECT_THAT(first.Wait().status.message(), ::testing::HasSubstr("stopping"));
  EXPECT_THAT(second.Wait().status.message(), ::testing::HasSubstr("stopping"));
  EXPECT_EQ(service_->Submit({.inputs = {{3}}}).status().code(), StatusCode::kCancelled);
}

// A request of many inputs is computed in parts beside others, so that a short one does not wait for all of it.
TEST_F(EmbeddingServiceTest, RequestsTakeTurns) {
  ComputeTurns turns;
  turns.BeginStep();  // somebody generates
  turns.EndStep();
  embedder_->waits = true;
  embedder_->microseconds = 20;
  Start({.step_ms = 1, .turns = &turns});
  Ended first;
  Ended large;
  Ended small;
  const EmbeddingId begins = Submit({{0}}, first);  // the others wait until both are there
  Submit(std::vector<std::vector<std::int32_t>>(2000, std::vector<std::int32_t>(16, 1)), large);
  Submit({{7}}, small);
  service_->Cancel(begins);
  EXPECT_EQ(first.Wait().status.code(), StatusCode::kCancelled);
  embedder_->waits = false;
  EXPECT_TRUE(small.Wait().status.ok());
  const EmbeddingResult result = large.Wait();
  EXPECT_EQ(result.tokens, 32000);
  EXPECT_EQ(result.values.size(), 8000u);
  EXPECT_GT(embedder_->calls, 5) << "the large request was computed in parts";
}

// Microseconds that only tests let pass.
class TestClock {
 public:
  std::function<double()> Function() {
    return [this] { return static_cast<double>(microseconds_) / 1e6; };
  }
  void Pass(double seconds) { microseconds_ += static_cast<std::int64_t>(seconds * 1e6); }
  double seconds() const { return static_cast<double>(microseconds_) / 1e6; }

 private:
  std::atomic<std::int64_t> microseconds_{1'000'000};
};

using Inputs = std::vector<std::vector<std::int32_t>>;

Inputs DistinctInputs(std::int32_t count) {
  Inputs inputs;
  for (std::int32_t i = 0; i < count; ++i) {
    inputs.emplace_back(SimpleEmbedder::kMaxTokens, 1);
    inputs.back().front() = i;
  }
  return inputs;
}

// An embedder that computes so many tokens a second, and somebody who generates beside it.
class PartsTest : public EmbeddingServiceTest {
 protected:
  void StartWithRate(double rate) {
    turns_.BeginStep();
    turns_.EndStep();  // just now, for ever: this clock stands still
    embedder_->computes = [this, rate](std::int64_t tokens) {
      if (embedder_->calls != calls_) parts_.push_back(0);
      calls_ = embedder_->calls;
      parts_.back() += tokens;
      clock_.Pass(static_cast<double>(tokens) / rate);
    };
    Start({.step_ms = 100, .clock = clock_.Function(), .turns = &turns_});
  }
  // Returns the tokens that were computed of each part.
  std::vector<std::int64_t> Run(Inputs inputs) {
    parts_.clear();
    Ended ended;
    Submit(std::move(inputs), ended);
    EXPECT_TRUE(ended.Wait().status.ok());
    return parts_;
  }

  TestClock clock_;
  TestClock still_;
  ComputeTurns turns_{still_.Function()};
  std::vector<std::int64_t> parts_;
  int calls_ = 0;
};

// What is computed once for many inputs says nothing about how long other inputs take.
TEST_F(PartsTest, EqualInputsAreNoMeasure) {
  StartWithRate(1000);
  const std::vector<std::int64_t> equal = Run(Inputs(2048, std::vector<std::int32_t>(16, 1)));
  EXPECT_THAT(equal, ElementsAre(16)) << "equal inputs are one part, which costs one of them";
  const std::vector<std::int64_t> parts = Run(DistinctInputs(400));
  // Of 100 ms: 200 tokens by the first rate, then 100.
  EXPECT_LE(*std::ranges::max_element(parts), 200);
  EXPECT_LE(parts.back(), 112);
  EXPECT_GE(parts.size(), 400u * 16 / 200);
}

// A rate that is much too high makes no long part beside others.
TEST_F(PartsTest, APartBesideOthersIsBounded) {
  StartWithRate(1e6);
  const std::vector<std::int64_t> parts = Run(DistinctInputs(2000));
  EXPECT_EQ(*std::ranges::max_element(parts), 1024);
}

// A call of many passes ends its turn between two of them.
TEST_F(EmbeddingServiceTest, ALongInputLetsStepsPass) {
  TestClock clock;
  ComputeTurns turns(clock.Function());
  std::atomic<int> steps{0};
  std::atomic<bool> end{false};
  std::vector<int> steps_before;  // each pass
  embedder_->computes = [&](std::int64_t) {
    steps_before.push_back(steps);
    clock.Pass(0.0625);
  };
  std::thread generation([&] {
    while (!end) {
      turns.BeginStep();
      clock.Pass(0.03125);
      ++steps;
      turns.EndStep();
    }
  });
  while (steps == 0) std::this_thread::yield();
  Start({.step_ms = 100, .clock = clock.Function(), .turns = &turns});
  Ended ended;
  Submit(DistinctInputs(8), ended);
  EXPECT_TRUE(ended.Wait().status.ok());
  end = true;
  generation.join();
  EXPECT_EQ(embedder_->calls, 1);
  ASSERT_EQ(steps_before.size(), 8u);
  for (std::size_t i = 1; i < 8; ++i) {
    const int between = steps_before[i] - steps_before[i - 1];
    if (i % 2 == 1) {
      EXPECT_EQ(between, 0) << "a turn has two passes of 62 ms";
    } else {
      EXPECT_GE(between, 4) << "steps of 31 ms have as much time as these";
    }
  }
}

TEST_F(EmbeddingServiceTest, BytesOfRequestsAreBounded) {
  embedder_->waits = true;
  // An input of 2 tokens and 4 values has 24 bytes.
  Start({.max_bytes = 100});
  Ended first;
  Ended second;
  const EmbeddingId large = Submit(Inputs(10, {1, 2}), first);  // alone any size is right
  service_->Cancel(large);
  (void)first.Wait();
  while (!service_->idle()) std::this_thread::yield();
  Submit(Inputs(3, {1, 2}), second);
  const auto refused = service_->Submit({.inputs = Inputs(2, {1, 2})});
  EXPECT_EQ(refused.status().code(), StatusCode::kCacheFull);
  EXPECT_THAT(refused.status().message(), ::testing::HasSubstr("72 bytes"));
  Ended third;
  Submit(Inputs(1, {1, 2}), third);
  embedder_->waits = false;
  EXPECT_TRUE(second.Wait().status.ok());
  EXPECT_TRUE(third.Wait().status.ok());
}

// Steps have as much time as the batch before them, not one step.
TEST(ComputeTurnsTest, TimeIsSharedInEqualParts) {
  TestClock clock;
  ComputeTurns turns(clock.Function());
  std::atomic<int> steps{0};
  std::atomic<bool> end{false};
  std::thread generation([&] {
    while (!end) {
      turns.BeginStep();
      clock.Pass(0.0078125);
      ++steps;
      turns.EndStep();
    }
  });
  while (steps == 0) std::this_thread::yield();
  turns.BeginBatch();
  for (int i = 0; i < 10; ++i) {
    const int before = steps;
    clock.Pass(0.125);
    turns.EndBatch();
    turns.BeginBatch();
    EXPECT_GE(steps - before, 16);
  }
  turns.EndBatch();
  end = true;
  generation.join();
}

// A batch does not wait for generations that have ended.
TEST(ComputeTurnsTest, TimeThatStepsDoNotNeedIsTheBatchs) {
  TestClock clock;
  ComputeTurns turns(clock.Function());
  turns.BeginStep();
  turns.EndStep();
  turns.BeginBatch();
  clock.Pass(3600.0);
  turns.EndBatch();
  std::thread waits([&] { turns.BeginBatch(); });
  clock.Pass(1.0);  // without a step
  waits.join();
  turns.EndBatch();
}

TEST(ComputeTurnsTest, StepsAndBatchesTakeTurns) {
  ComputeTurns turns;
  EXPECT_FALSE(turns.HasSteps());
  std::atomic<int> steps{0};
  std::atomic<int> batches{0};
  std::atomic<bool> inside{false};
  std::atomic<bool> wrong{false};
  std::atomic<bool> end{false};
  std::thread generation([&] {
    while (!end) {
      turns.BeginStep();
      if (inside) wrong = true;
      ++steps;
      turns.EndStep();
    }
  });
  while (steps == 0) std::this_thread::yield();
  EXPECT_TRUE(turns.HasSteps());
  // Both go on while the other wants its turn all the time.
  while (batches < 200 || steps < 200) {
    turns.BeginBatch();
    inside = true;
    ++batches;
    std::this_thread::yield();
    inside = false;
    turns.EndBatch();
  }
  end = true;
  generation.join();
  EXPECT_FALSE(wrong);
}

class CountingTurns final : public StepTurns {
 public:
  void BeginStep() override { ++begun; }
  void EndStep() override { ++ended; }
  int begun = 0, ended = 0;
};

TEST(ComputeTurnsTest, AStepOfASchedulerTakesATurn) {
  const auto engine = Engine::Open(std::string(KVCACHE_SOURCE_DIR) + "/models/story.gguf",
                                   {.threads = 1, .context = 64});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  CountingTurns turns;
  SchedulerOptions options;
  options.turns = &turns;
  const auto scheduler = Scheduler::Make(**engine, options);
  ASSERT_TRUE(scheduler.ok());
  EXPECT_FALSE(*(*scheduler)->Step());
  EXPECT_EQ(turns.begun, 0) << "nothing is computed";
  ScheduledRequest request;
  request.prompt = *(*engine)->Tokenize("Once upon a time");
  request.max_tokens = 4;
  ASSERT_TRUE((*scheduler)->Submit(std::move(request)).ok());
  while (*(*scheduler)->Step()) {
  }
  EXPECT_GE(turns.begun, 4);
  EXPECT_EQ(turns.ended, turns.begun);
}

}  // namespace
}  // namespace kvcache::server::embedding_service_test
