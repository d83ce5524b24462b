// The requests of long_prompt_bench: streams that generate, a long prompt, and short ones.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench_program.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache::bench {

using Tokens = std::vector<std::int32_t>;

struct LongPromptOptions {
  std::string model;
  std::string json;
  int threads = FindProcessorLimits().DefaultThreads();
  int context = 32768;
  int prompt = 30000;
  int streams = 15;
  int brief = 40;  // tokens of a short prompt
  int briefs = 6;  // short requests while the long prompt is read
  int checked =
      128;  // tokens of each stream that are compared, which also say what decodes take by themselves
  int step_ms = SchedulerOptions{}.step_ms;
  int busy = 0;            // threads that only take time
  bool with_whole = true;  // also with chunks of a whole pass
};

// Threads that take processor time until the program's end.
class BusyLoops {
 public:
  explicit BusyLoops(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
        }
      });
    }
  }
  ~BusyLoops() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  BusyLoops(const BusyLoops&) = delete;
  BusyLoops& operator=(const BusyLoops&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Keeps a text from its end, so that streams continue as long as they are measured.
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

// The requests of a measurement on a scheduler of their own.
class Requests {
 public:
  Requests(Engine& engine, const LongPromptOptions& options, int step_ms)
      : engine_(engine),
        options_(options),
        scheduler_(Require(Scheduler::Make(engine, {.step_ms = step_ms}))),
        no_end_(std::make_shared<NoEnd>(engine)) {}

  struct Prompt {
    std::vector<float> logits;  // behind the prompt
    double first_token_ms = 0.0;
    bool done = false;
  };

  void AddStreams() {
    streams_.resize(static_cast<std::size_t>(options_.streams));
    for (int i = 0; i < options_.streams; ++i) {
      Stream& stream = streams_[static_cast<std::size_t>(i)];
      ScheduledRequest request{.prompt = Text(16, 100 + i), .sampling = {.temperature = 0.0f}};
      request.constraint = no_end_;
      request.on_token = [this, &stream](std::int32_t token) {
        const auto now = std::chrono::steady_clock::now();
        if (!stream.tokens.empty()) {
          gaps_.push_back(std::chrono::duration<double, std::milli>(now - stream.last).count());
        }
        stream.last = now;
        stream.tokens.push_back(token);
        return !stop_;
      };
      Submit(std::move(request));
    }
  }
  void AddPrompt(Prompt& prompt, int tokens, int seed) {
    ScheduledRequest request{.prompt = Text(tokens, seed), .max_tokens = 1};
    request.on_logits = [&prompt](Position, std::span<const float> logits) {
      prompt.logits.assign(logits.begin(), logits.end());
    };
    request.on_done = [&prompt](const RequestResult& result) {
      Require(result.status);
      prompt.first_token_ms = result.first_token_ms;
      prompt.done = true;
    };
    Submit(std::move(request));
  }
  void Step() { (void)Require(scheduler_->Step()); }
  // Steps until each stream has so many tokens.
  void Generate(int tokens) {
    while (std::any_of(streams_.begin(), streams_.end(),
                       [&](const Stream& stream) { return std::ssize(stream.tokens) < tokens; })) {
      Step();
    }
  }
  void End() {
    stop_ = true;
    while (Require(scheduler_->Step())) {
    }
  }
  // Returns the tokens of the long prompt that were read.
  Position Read() const {
    Position read = 0;
    for (const RequestState& state : scheduler_->Requests()) {
      if (state.prompt == options_.prompt) read = state.evaluated;
    }
    return read;
  }
  std::vector<double> TakeGaps() { return std::exchange(gaps_, {}); }
  Tokens Beginning(std::size_t stream) const {
    const Tokens& tokens = streams_[stream].tokens;
    return {tokens.begin(), tokens.begin() + options_.checked};
  }

 private:
  struct Stream {
    Tokens tokens;
    std::chrono::steady_clock::time_point last{};
  };
  Tokens Text(int count, int seed) const {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto max = static_cast<unsigned>(engine_.vocabulary_size() - 3);
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(3 + random() % max));
    return tokens;
  }
  void Submit(ScheduledRequest request) { (void)Require(scheduler_->Submit(std::move(request))); }

  Engine& engine_;
  const LongPromptOptions& options_;
  const std::unique_ptr<Scheduler> scheduler_;
  const std::shared_ptr<NoEnd> no_end_;
  std::vector<Stream> streams_;
  std::vector<double> gaps_;
  bool stop_ = false;
};

}  // namespace kvcache::bench
