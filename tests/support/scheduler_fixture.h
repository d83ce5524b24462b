// A scheduler on a small random model, and the check that each request has the bits of its text alone.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"
#include "make_model/architecture.h"
#include "make_model/make_model.h"
#include "support/backend_of_tests.h"

namespace kvcache {

// The parameter is the architecture of the model; "lfm2_window" is lfm2 with a window.
class SchedulerFixture : public ::testing::TestWithParam<const char*> {
 protected:
  using Tokens = std::vector<std::int32_t>;
  using Row = std::vector<float>;
  static constexpr int kContext = 256;

  // A request and what came of it.
  struct Asked {
    Tokens prompt;
    std::map<Position, Row> logits;  // by number of evaluated tokens
    RequestResult result;
    bool done = false;
  };

  void SetUp() override {
    path_ = ::testing::TempDir() + "scheduler." + std::to_string(getpid()) + ".gguf";
    std::string architecture = GetParam();
    if (architecture == "lfm2_window") architecture = "lfm2";
    make_model::Request request{.architecture = architecture, .type = DType::kF32};
    if (architecture.starts_with("gemma3")) {  // every second layer has a window
      request.shape.window = 24;
      request.shape.window_pattern = 2;
    }
    if (architecture == "gemma3n") {  // and the third layer shares keys and values
      request.shape.layers = 3;
      request.shape.family.shared_layers = 1;
    }
    if (architecture != GetParam()) request.shape.window = 24;
    const auto* const family = *make_model::FindArchitecture(architecture);
    if (family->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 4;
    if (architecture == "qwen3next" || architecture == "qwen35" || architecture == "llama") {
      request.shape.family.nextn_layers = 1;  // only engines that ask for the head have it
    }
    if (architecture == "mamba2") request.seed = 2;  // answers of the first one's end early
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    alone_ = Open({.threads = 2, .context = kContext, .prefill_chunk = 64});
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::unique_ptr<Engine> Open(const EngineOptions& options,
                               std::unique_ptr<Backend> backend = nullptr) {
    auto engine = Engine::Open(path_, options, std::move(backend));
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  void Start(int sequences, int pool, SchedulerOptions options = {},
             std::unique_ptr<Backend> backend = nullptr) {
    StartWith({.threads = 2,
               .context = kContext,
               .max_sequences = sequences,
               .pool_tokens = pool,
               .prefill_chunk = 32},
              std::move(options), std::move(backend));
  }
  void StartWith(const EngineOptions& engine_options, SchedulerOptions options,
                 std::unique_ptr<Backend> backend = nullptr) {
    scheduler_.reset();  // before its engine
    if (backend == nullptr) backend = testing::BackendOfTests(engine_options.threads);
    engine_ = Open(engine_options, std::move(backend));
    options.recompute_bound = 32;
    auto scheduler = Scheduler::Make(*engine_, options);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(scheduler).value();
  }
  // Bytes that a budget counts.
  std::int64_t Held() const {
    return engine_->cache().memory()->ResidentBytes() + engine_->WorkspaceBytes();
  }
  virtual void BeforeCallback() {}
  Asked& Ask(Tokens prompt, int max_tokens, ScheduledRequest request = {}) {
    asked_.push_back(std::make_unique<Asked>());
    Asked& asked = *asked_.back();
    asked.prompt = prompt;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.sampling = sampling_;
    request.sampling.seed = asked_.size();
    request.on_logits = [this, &asked](Position length, std::span<const float> logits) {
      BeforeCallback();
      asked.logits[length] = {logits.begin(), logits.end()};
    };
    request.on_done = [this, &asked](const RequestResult& result) {
      BeforeCallback();
      EXPECT_FALSE(asked.done);
      asked.done = true;
      asked.result = result;
    };
    const auto id = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    asked.result.id = *id;
    return asked;
  }
  void RunAll() {
    for (int steps = 0; *scheduler_->Step(); ++steps) ASSERT_LT(steps, 100000);
  }

  // Compares all logits of a request with those of its text alone.
  void ExpectExact(const Asked& asked) {
    Tokens text = asked.prompt;
    text.insert(text.end(), asked.result.tokens.begin(), asked.result.tokens.end());
    Session session(*alone_, SequenceId{0});
    for (const auto& [length, row] : asked.logits) {
      const auto size = static_cast<std::size_t>(length);
      ASSERT_LE(size, text.size());
      ASSERT_TRUE(session
                      .Append(std::span(text).subspan(session.tokens().size(),
                                                      size - session.tokens().size()))
                      .ok());
      const auto expected = *session.LastLogits();
      ASSERT_EQ(row, Row(expected.begin(), expected.end()))
          << "after " << length << " tokens, restored " << asked.result.reuse.restored
          << ", parked " << asked.result.reuse.parked;
    }
  }
  // Returns the prompt and what follows it at temperature 0.
  Tokens WithGreedyAnswer(Tokens prompt, int count) {
    Session session(*alone_, SequenceId{0});
    EXPECT_TRUE(session.Append(prompt).ok());
    while (count-- > 0 && session.position() < kContext) {
      const std::span<const float> logits = *session.LastLogits();
      const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                                  logits.begin());
      prompt.push_back(best);
      if (alone_->IsEndOfGeneration(best)) break;
      EXPECT_TRUE(session.Append({&best, 1}).ok());
    }
    return prompt;
  }
  void ExpectNothingLeaks() {
    while (scheduler_->prefixes().Evict(1 << 20) >= 0) {
    }
    EXPECT_EQ(scheduler_->prefixes().Stats().tokens, 0);
    EXPECT_EQ(scheduler_->prefixes().Stats().states, 0);
    EXPECT_EQ(engine_->cache().snapshots()->SnapshotBytes(), 0);
    const auto fresh = Open(engine_->options());
    EXPECT_EQ(engine_->cache().memory()->FreeCells(), fresh->cache().memory()->FreeCells());
  }

  static Tokens SomeTokens(int count, int first = 3) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(first + i * 37 % 250);
    return tokens;
  }

  std::string path_;
  std::unique_ptr<Engine> alone_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  SamplingParams sampling_{.temperature = 1.0f};  // of the next requests
  std::vector<std::unique_ptr<Asked>> asked_;
};

}  // namespace kvcache
