// Generate on a small random model: bad requests, full contexts, interrupts, functions that throw.
#include "kvcache_engine/generate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcache/cpu_backend.h"
#include "make_model/make_model.h"
#include "support/failing_backend.h"

namespace kvcache::generate_test {
namespace {

std::vector<std::int32_t> SomeTokens(int count, std::int32_t first = 3) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + (i * 37) % 250);
  return tokens;
}

class GenerateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = new std::string(::testing::TempDir() + "generate_test." + std::to_string(getpid()) +
                            ".gguf");
    const Status status = make_model::MakeModel({.type = DType::kF16, .seed = 11}, *path_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static void TearDownTestSuite() {
    std::filesystem::remove(*path_);
    delete path_;
  }

  static std::unique_ptr<Engine> Open(EngineOptions options = {}) {
    auto engine = Engine::Open(*path_, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  static std::string* path_;
};

std::string* GenerateTest::path_ = nullptr;

TEST_F(GenerateTest, RefusesBadRequests) {
  const auto engine = Open({.context = 16});
  const auto scheduler = std::move(*Scheduler::Make(*engine, {}));
  const auto fails = [&](const GenerateRequest& request, const std::string& message) {
    const auto result = Generate(*scheduler, request);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().message(), message);
    EXPECT_EQ(scheduler->waiting(), 0u);
  };
  fails({}, "the prompt is empty");
  fails({.prompt = SomeTokens(17)}, "the prompt has 17 tokens, the context holds 16");
  fails({.prompt = SomeTokens(2), .stop = {""}}, "a stop string is empty");
}

TEST_F(GenerateTest, ContinuesBeyondTheContext) {
  const auto engine = Open({.context = 24});
  GenerateRequest request{.prompt = SomeTokens(10), .max_tokens = 100};
  request.sampling.temperature = 2.0f;
  request.sampling.top_k = 0;
  request.sampling.seed = 3;
  const auto result = Generate(**Scheduler::Make(*engine, {}), request);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->stop, StopReason::kLength);
  EXPECT_EQ(result->tokens.size(), 100u);
  EXPECT_GT(result->shifts, 5);
  EXPECT_LE(result->evaluated, 24);
}

TEST_F(GenerateTest, InterruptBeforeThePromptAndInText) {
  const auto engine = Open({.context = 64});
  const auto scheduler = std::move(*Scheduler::Make(*engine, {}));
  std::atomic<bool> interrupt{true};
  GenerateRequest request{.prompt = SomeTokens(10), .max_tokens = 50, .interrupt = &interrupt};
  auto result = Generate(*scheduler, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->stop, StopReason::kInterrupted);
  EXPECT_EQ(result->evaluated, 0);

  interrupt = false;
  request.on_text = [](std::string_view) { return false; };
  result = Generate(*scheduler, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->stop, StopReason::kInterrupted);
  EXPECT_EQ(result->evaluated, 10) << "the prompt stays; the last token was not evaluated";
}

// The interrupt of a request that waits for the only sequence ends it at once, and the other one continues.
TEST_F(GenerateTest, InterruptWhileARequestWaits) {
  const auto engine = Open({.context = 64});
  const auto scheduler = std::move(*Scheduler::Make(*engine, {}));
  bool other_ended = false;
  ScheduledRequest other{.prompt = SomeTokens(10), .max_tokens = 40};
  other.on_done = [&](const RequestResult&) { other_ended = true; };
  ASSERT_TRUE(scheduler->Submit(std::move(other)).ok());
  const std::atomic<bool> interrupt{true};
  const auto result =
      Generate(*scheduler, {.prompt = SomeTokens(12), .max_tokens = 5, .interrupt = &interrupt});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->stop, StopReason::kInterrupted);
  EXPECT_FALSE(other_ended);
  while (*scheduler->Step()) {
  }
  EXPECT_TRUE(other_ended);
}

// What a function of a request throws ends that request only, and nothing of it is left.
TEST_F(GenerateTest, AFunctionThatThrowsEndsItsRequest) {
  const auto engine = Open({.context = 64, .max_sequences = 2});
  const GenerateRequest plain{.prompt = SomeTokens(10), .max_tokens = 8};
  const auto expected = Generate(**Scheduler::Make(*Open({.context = 64}), {}), plain);
  ASSERT_TRUE(expected.ok());
  for (const bool drafts : {false, true}) {
    const auto scheduler = std::move(*Scheduler::Make(*engine, {.look_up_drafts = drafts}));
    RequestResult beside;
    ScheduledRequest other{.prompt = plain.prompt, .max_tokens = 8};
    other.on_done = [&](const RequestResult& ended) { beside = ended; };
    ASSERT_TRUE(scheduler->Submit(std::move(other)).ok());
    const auto throws = [] { throw std::runtime_error("no more"); };
    GenerateRequest on_text = plain, on_prefill = plain, on_logits = plain;
    on_text.on_text = [&](std::string_view) -> bool {
      throws();
      return true;
    };
    on_prefill.on_prefill = [&](std::int32_t) { throws(); };
    on_logits.on_logits = [&](Position, std::span<const float>) { throws(); };
    for (const GenerateRequest& request : {on_text, on_prefill, on_logits}) {
      EXPECT_THROW((void)Generate(*scheduler, request), std::runtime_error);
      EXPECT_LE(scheduler->live() + scheduler->waiting(), 1U);
    }
    const auto after = Generate(*scheduler, plain);
    ASSERT_TRUE(after.ok()) << after.status().message();
    EXPECT_EQ(after->tokens, expected->tokens);
    while (*scheduler->Step()) {
    }
    EXPECT_EQ(beside.tokens, expected->tokens);
    EXPECT_TRUE(beside.status.ok());
  }
}

TEST_F(GenerateTest, AScheduledFunctionThatThrowsIsAnError) {
  const auto engine = Open({.context = 64});
  const auto scheduler = std::move(*Scheduler::Make(*engine, {}));
  RequestResult result;
  ScheduledRequest request{.prompt = SomeTokens(10), .max_tokens = 8};
  request.on_started = [](const ReuseReport&) { throw std::runtime_error("no more"); };
  request.on_done = [&](const RequestResult& ended) {
    result = ended;
    throw 1;  // reaches nobody
  };
  ASSERT_TRUE(scheduler->Submit(std::move(request)).ok());
  while (*scheduler->Step()) {
  }
  EXPECT_EQ(result.status.code(), StatusCode::kInternal);
  EXPECT_EQ(result.status.message(), "a function of the request threw: no more");
  EXPECT_EQ(scheduler->live() + scheduler->waiting(), 0U);
}

// Prefixes that go to host memory are bounded too.
TEST_F(GenerateTest, OneAtATimeKeepsThreeContexts) {
  const auto engine = Open({.context = 64});
  const auto scheduler = std::move(*Scheduler::Make(*engine, {.one_at_a_time = true}));
  std::int64_t largest = 0;
  for (std::int32_t i = 0; i < 30; ++i) {
    std::vector<std::int32_t> prompt = SomeTokens(50);
    prompt[1] = 3 + i;
    ASSERT_TRUE(Generate(*scheduler, {.prompt = prompt, .max_tokens = 1}).ok());
    largest = std::max(largest, scheduler->prefixes().Stats().tokens);
  }
  EXPECT_GT(largest, 2 * 64);
  EXPECT_LE(largest, 3 * 64);
}

// An interrupt ends a pass in the middle: the passes before it stay, and the report counts them.
TEST_F(GenerateTest, InterruptInAPassOfThePrompt) {
  auto owned =
      std::make_unique<testing::FailingBackend>(std::move(MakeCpuBackend({.threads = 1})).value());
  testing::FailingBackend& backend = *owned;
  auto opened = Engine::Open(*path_, {.context = 64, .prefill_chunk = 4}, std::move(owned));
  ASSERT_TRUE(opened.ok());
  Engine& engine = **opened;
  const auto scheduler = std::move(*Scheduler::Make(engine, {}));
  std::atomic<bool> interrupt{false};
  GenerateRequest request{.prompt = SomeTokens(10), .max_tokens = 4, .interrupt = &interrupt};
  request.sampling.temperature = 0.0f;
  request.on_prefill = [&](std::int32_t done) {
    if (done == 4) backend.SetAtNth(3, &interrupt);  // of the second pass
  };
  auto result = Generate(*scheduler, request);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->stop, StopReason::kInterrupted);
  EXPECT_EQ(result->evaluated, 4);
  EXPECT_EQ(result->prompt_tokens, 10);
  EXPECT_EQ(result->computed_tokens, 4);

  // The computed tokens are kept: the rest of the prompt gives the answer of a run without a stop.
  interrupt = false;
  request.on_prefill = {};
  result = Generate(*scheduler, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reuse.restored, 4);
  EXPECT_EQ(result->computed_tokens, 6);
  const auto again = Generate(**Scheduler::Make(*Open({.context = 64}), {}), request);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->tokens, result->tokens);
}

// Text that is held back, because it may begin a stop string, is not returned after the stop.
TEST_F(GenerateTest, WhoStopsTheTextIsNotCalledAgain) {
  const auto engine = Open({.context = 64});
  const auto scheduler = std::move(*Scheduler::Make(*engine, {}));
  GenerateRequest request{.prompt = SomeTokens(10), .max_tokens = 50};
  request.sampling.temperature = 0.0f;
  auto whole = Generate(*scheduler, request);
  ASSERT_TRUE(whole.ok());
  ASSERT_GE(whole->text.size(), 2u);
  // Held back: the last character of what comes first, whatever it is.
  std::string first;
  request.on_text = [&](std::string_view text) {
    first = text;
    return false;
  };
  ASSERT_TRUE(Generate(*scheduler, request).ok());
  ASSERT_GE(first.size(), 2u) << "a text whose first piece can be cut";
  request.stop = {first.substr(first.size() - 1) + "\x01 never"};
  int calls = 0;
  request.on_text = [&](std::string_view) {
    ++calls;
    return false;
  };
  const auto result = Generate(*scheduler, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->stop, StopReason::kInterrupted);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace kvcache::generate_test
