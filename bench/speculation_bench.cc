// Measures drafts in the scheduler, against the same requests without: tokens per second of one request and
// of several.
//
//   speculation_bench --model M.gguf
//
// `right N`: a drafter that knows the answer, and is right with a probability of N percent. `again`: the
// same prompt a second time, with drafts that are looked up in the prefix cache. Every answer
// must be that of the request without drafts.
// `edit`, with --edit N: the answer is the new version of a text that the drafter has seen. Every Nth token
// of the old version was replaced, removed, or had another one before it. `head`: the model's draft head.
// `head alone`: the same, and no two requests draft in the same pass of the head.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench_program.h"
#include "engine/engine_impl.h"
#include "kvcache_engine/head_drafter.h"
#include "kvcache_engine/scheduler.h"
#include "support/drafts/scripted_drafter.h"

namespace kvcache::bench {
namespace {

using Tokens = std::vector<std::int32_t>;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  std::string json;
  int threads = FindProcessorLimits().DefaultThreads();
  int prompt = 64, answer = 160, requests = 1, rounds = 2, depth = -1;
  float temperature = 0.0f;
  int edit = 0;
  std::string head;
  bool again = true;
  std::vector<int> rates = {0, 50, 80, 100};
};

struct Measured {
  double tokens_per_second = 0.0;
  double drafted = 0.0;   // per token
  double accepted = 0.0;  // of the drafts
  std::vector<Tokens> answers;
};

// Asks a drafter without the others of its batch.
class AloneDrafter final : public Drafter {
 public:
  explicit AloneDrafter(std::unique_ptr<Drafter> drafter) : drafter_(std::move(drafter)) {}
  void SetSequence(SequenceId sequence) override { drafter_->SetSequence(sequence); }
  Status Begin(std::span<const std::int32_t> text) override { return drafter_->Begin(text); }
  Status Add(std::int32_t token) override { return drafter_->Add(token); }
  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    return drafter_->Propose(max, drafts);
  }

 private:
  std::unique_ptr<Drafter> drafter_;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    engine_ = Require(Engine::Open(options.model, {.threads = options.threads,
                                                   .context = 4096,
                                                   .max_sequences = std::max(2, options.requests),
                                                   .draft_head = options.head}));
    scheduler_ = Require(Scheduler::Make(*engine_, {.look_up_drafts = true}));
    std::mt19937 random(7);
    for (int i = 0; i < options.requests; ++i) {
      Tokens prompt;
      for (int at = 0; at < options.prompt; ++at) {
        prompt.push_back(static_cast<std::int32_t>(
            10 + random() % static_cast<unsigned>(engine_->vocabulary_size() - 10)));
      }
      prompts_.push_back(std::move(prompt));
    }
  }

  // A round measures each case once, so that what else the machine does concerns all of them.
  nlohmann::json Run() {
    plain_.answers =
        Once([](ScheduledRequest& request, std::size_t) { request.draft_tokens = 0; }).answers;
    AddCases();
    for (int round = 0; round < options_.rounds; ++round) {
      for (Case& each : cases_) {
        Measured one = Once(each.prepare);
        CheckAnswers(each.name, one);
        if (one.tokens_per_second > each.best.tokens_per_second) each.best = std::move(one);
      }
    }
    plain_ = cases_.front().best;
    for (const Case& each : cases_) Report(each.name, each.best);
    return results_;
  }

 private:
  Tokens OldVersion(const Tokens& text) const {
    Tokens old;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::size_t edit = (i + 1) % static_cast<std::size_t>(options_.edit);
      const std::size_t kind =
          edit == 0 ? (i + 1) / static_cast<std::size_t>(options_.edit) % 3 : 3;
      const std::int32_t other = (text[i] + 1) % engine_->vocabulary_size();
      if (kind == 0 || kind == 1) old.push_back(other);
      if (kind == 1 || kind == 3) old.push_back(text[i]);
    }
    return old;
  }

  using Prepare = std::function<void(ScheduledRequest& request, std::size_t index)>;
  struct Case {
    std::string name;
    Prepare prepare;
    Measured best{};
  };

  // What drafters measured stays, for the next rounds.
  void AddWithDrafters(const std::string& name,
                       const std::function<std::shared_ptr<Drafter>(std::size_t index)>& make) {
    std::vector<std::shared_ptr<Drafter>> drafters;
    for (std::size_t i = 0; i < prompts_.size(); ++i) drafters.push_back(make(i));
    cases_.push_back({name, [drafters](ScheduledRequest& request, std::size_t i) {
                        request.drafter = drafters[i];
                      }});
  }

  void AddCases() {
    cases_.push_back(
        {"plain", [](ScheduledRequest& request, std::size_t) { request.draft_tokens = 0; }});
    for (const int rate : options_.rates) {
      AddWithDrafters("right " + std::to_string(rate), [&](std::size_t i) {
        Tokens text = prompts_[i];
        text.insert(text.end(), plain_.answers[i].begin(), plain_.answers[i].end());
        return std::make_shared<testing::ScriptedDrafter>(text, engine_->vocabulary_size(),
                                                          1.0 - rate / 100.0);
      });
    }
    if (options_.edit > 0) {
      cases_.push_back({"edit", [this](ScheduledRequest& request, std::size_t i) {
                          request.drafter = MakeLookupDrafter();
                          Require(request.drafter->Begin(OldVersion(plain_.answers[i])));
                        }});
    }
    if (engine_->has_draft_head()) {
      AddWithDrafters("head", [this](std::size_t) { return Require(MakeHeadDrafter(*engine_)); });
      if (options_.requests > 1) {
        AddWithDrafters("head alone", [this](std::size_t) {
          return std::make_shared<AloneDrafter>(Require(MakeHeadDrafter(*engine_)));
        });
      }
    }
    if (options_.again) cases_.push_back({"again", [](ScheduledRequest&, std::size_t) {}});
  }

  // The time is that of the steps after all prompts were read.
  Measured Once(const Prepare& prepare) {
    Measured measured;
    measured.answers.resize(prompts_.size());
    std::size_t reading = prompts_.size();
    std::int64_t drafted = 0;
    std::int64_t accepted = 0;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      ScheduledRequest request;
      request.prompt = prompts_[i];
      request.sampling = {.temperature = options_.temperature, .seed = i + 1};
      request.max_tokens = options_.answer;
      request.draft_tokens = options_.depth;
      prepare(request, i);
      request.on_logits = [&, first = true](Position, std::span<const float>) mutable {
        if (std::exchange(first, false)) --reading;
      };
      request.on_done = [&, i](const RequestResult& result) {
        measured.answers[i] = result.tokens;
        drafted += result.speculation.drafted;
        accepted += result.speculation.accepted;
      };
      (void)Require(scheduler_->Submit(std::move(request)));
    }
    while (reading > 0) (void)Require(scheduler_->Step());
    const Clock::time_point start = Clock::now();
    while (Require(scheduler_->Step())) {
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::size_t tokens = 0;
    for (const Tokens& answer : measured.answers) tokens += answer.size() - 1;
    measured.tokens_per_second = static_cast<double>(tokens) / seconds;
    measured.drafted = static_cast<double>(drafted) / static_cast<double>(tokens);
    measured.accepted =
        drafted > 0 ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0.0;
    return measured;
  }

  void CheckAnswers(const std::string& name, const Measured& measured) const {
    if (measured.answers == plain_.answers) return;
    std::fprintf(stderr, "speculation_bench: %s has another answer\n", name.c_str());
    std::exit(1);
  }

  void Report(const std::string& name, const Measured& measured) {
    const double times = measured.tokens_per_second / plain_.tokens_per_second;
    std::printf("%-10s %7.2f tokens/s  %5.2f times plain  %.2f drafts per token, %3.0f%% right\n",
                name.c_str(), measured.tokens_per_second, times, measured.drafted,
                100 * measured.accepted);
    std::fflush(stdout);
    results_.push_back({{"name", name},
                        {"tokens_per_second", measured.tokens_per_second},
                        {"times_plain", times},
                        {"drafts_per_token", measured.drafted},
                        {"accepted", measured.accepted}});
  }

  const Options& options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Tokens> prompts_;
  std::vector<Case> cases_;
  Measured plain_;
  nlohmann::json results_ = nlohmann::json::array();
};

int Main(int argc, char** argv) {
  CLI::App app("Measures drafts in the scheduler.");
  Options options;
  app.add_option("--model", options.model)->required()->check(CLI::ExistingFile);
  app.add_option("--json", options.json);
  app.add_option("--threads", options.threads);
  app.add_option("--prompt", options.prompt, "tokens");
  app.add_option("--answer", options.answer, "tokens");
  app.add_option("--requests", options.requests, "side by side");
  app.add_option("--rounds", options.rounds);
  app.add_option("--depth", options.depth, "drafts of a round; -1: as many as pay");
  app.add_option("--temperature", options.temperature);
  app.add_option("--edit", options.edit, "tokens between two edits of a text; 0: no such case");
  app.add_option("--head", options.head, "a file with a draft head")->check(CLI::ExistingFile);
  app.add_option("--rates", options.rates, "percent of drafts that are right");
  app.add_flag("!--no-again", options.again, "leaves out the drafts that are looked up");
  CLI11_PARSE(app, argc, argv);
  const nlohmann::json cases = Bench(options).Run();
  return WriteResult(options.json, {.bench = "speculation",
                                    .machine = MachineFacts(options.threads),
                                    .settings = {{"requests", options.requests}},
                                    .cases = cases})
             ? 0
             : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
