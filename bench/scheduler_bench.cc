// Measures the scheduler on a model: what it costs beside its passes, and what many users with little
// memory gain from it.
//
//   scheduler_bench --model M.gguf
//
// Users: 16 conversations take turns on room for 4 sequences. The other side is the last prompt per
// slot: 4 sessions, of which each prompt takes the one that has most of it, or the one that was not
// used for the longest time. Both sides must choose the same tokens.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/fnv.h"
#include "base/step_parts.h"
#include "base/strings.h"
#include "bench_program.h"
#include "engine/engine_impl.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"
#include "support/counting_new.h"

namespace kvcache::bench {
namespace {

using Tokens = std::vector<std::int32_t>;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  std::string json;
  std::string filter = "users,step";
  int threads = FindProcessorLimits().DefaultThreads();
  int users = 16, room = 4, turns = 4;
  int system_tokens = 256, first_tokens = 600, turn_tokens = 40, answer_tokens = 16;
  std::vector<int> sequences = {64};
  int history = 32, steps = 100;
  float temperature = 0.0f;
};

double Milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

// REQUIRES: values is not empty.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Text {
 public:
  explicit Text(const Engine& engine, unsigned seed)
      : max_(engine.vocabulary_size()), random_(seed) {}
  void Add(Tokens& tokens, int count) {
    for (int i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(3 + random_() % static_cast<unsigned>(max_ - 3)));
    }
  }

 private:
  int max_;
  std::mt19937 random_;
};

struct Answer {
  Tokens tokens;
  double first_token_ms = 0.0;
};

std::int32_t Best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Answers a prompt as a server with the last prompt per slot does.
class Slots {
 public:
  Slots(Engine& engine, int count) : engine_(engine) {
    for (int i = 0; i < count; ++i) {
      slots_.push_back({std::make_unique<Session>(engine, SequenceId{i}), 0});
    }
  }
  Answer Ask(const Tokens& prompt, int answer_tokens) {
    const auto start = Clock::now();
    Slot* best = nullptr;
    Position max = 0;
    for (Slot& slot : slots_) {
      const Position same = Shared(*slot.session, prompt);
      const bool better = best == nullptr || same > max || (same == max && slot.used < best->used);
      if (better) best = &slot;
      max = std::max(max, same);
    }
    best->used = ++clock_;
    Session& session = *best->session;
    const Position kept = std::min(max, static_cast<Position>(prompt.size()) - 1);
    Require(session.Truncate(kept));
    Require(session.Append(std::span(prompt).subspan(session.tokens().size())));
    Answer answer;
    for (int i = 0; i < answer_tokens; ++i) {
      const std::int32_t token = Best(Require(session.LastLogits()));
      if (i == 0) answer.first_token_ms = Milliseconds(start);
      if (engine_.IsEndOfGeneration(token)) break;
      answer.tokens.push_back(token);
      if (i + 1 < answer_tokens) Require(session.Append({&token, 1}));
    }
    return answer;
  }

 private:
  struct Slot {
    std::unique_ptr<Session> session;
    std::int64_t used = 0;
  };
  static Position Shared(const Session& session, const Tokens& prompt) {
    const auto held = session.tokens();
    const auto end =
        held.begin() + static_cast<std::ptrdiff_t>(std::min(held.size(), prompt.size()));
    return static_cast<Position>(std::mismatch(held.begin(), end, prompt.begin()).first -
                                 held.begin());
  }

  Engine& engine_;
  std::vector<Slot> slots_;
  std::int64_t clock_ = 0;
};

Answer AskScheduler(Scheduler& scheduler, const Tokens& prompt, int answer_tokens) {
  Answer answer;
  ScheduledRequest request{
      .prompt = prompt, .sampling = {.temperature = 0.0f}, .max_tokens = answer_tokens};
  request.on_done = [&](const RequestResult& result) {
    Require(result.status);
    answer = {result.tokens, result.first_token_ms};
  };
  (void)Require(scheduler.Submit(std::move(request)));
  while (Require(scheduler.Step())) {
  }
  return answer;
}

// Returns the case. The conversations' answers are the slots', so that both sides get the same prompts.
nlohmann::json Users(const Options& options) {
  const int longest = options.system_tokens + options.first_tokens +
                      options.turns * (options.turn_tokens + options.answer_tokens);
  const int context = (longest + 255) / 256 * 256;
  // Both have the same cells: room for `room` sequences of the whole context, with as many tokens as
  // all conversations have.
  const int room = std::max(context, (longest * options.users + options.room - 1) / options.room);
  const EngineOptions engine_options{.threads = options.threads,
                                     .context = room,
                                     .max_sequences = options.room,
                                     .pool_tokens = room * options.room};
  const auto slots_engine = Require(Engine::Open(options.model, engine_options));
  const auto engine = Require(Engine::Open(options.model, engine_options));
  Slots slots(*slots_engine, options.room);
  const auto scheduler = Require(Scheduler::Make(*engine, {}));
  Text text(*engine, 1);
  Tokens system;
  text.Add(system, options.system_tokens);
  std::vector<Tokens> conversations(static_cast<std::size_t>(options.users), system);
  std::vector<double> slots_ms;
  std::vector<double> ours_ms;
  for (int turn = 0; turn < options.turns; ++turn) {
    for (Tokens& conversation : conversations) {
      text.Add(conversation, turn == 0 ? options.first_tokens : options.turn_tokens);
      const Answer theirs = slots.Ask(conversation, options.answer_tokens);
      const Answer ours = AskScheduler(*scheduler, conversation, options.answer_tokens);
      if (ours.tokens != theirs.tokens) {
        std::fprintf(stderr, "scheduler_bench: the two sides chose different tokens in turn %d\n",
                     turn + 1);
        std::exit(1);
      }
      slots_ms.push_back(theirs.first_token_ms);
      ours_ms.push_back(ours.first_token_ms);
      conversation.insert(conversation.end(), ours.tokens.begin(), ours.tokens.end());
    }
  }
  const double ours = Median(ours_ms);
  const double theirs = Median(slots_ms);
  std::printf(
      "%d users, room for %d: first token %.1f ms, with the last prompt per slot %.1f ms (%.1fx)\n",
      options.users, options.room, ours, theirs, theirs / ours);
  return {{"name", "users"},        {"median_ms", ours},      {"slots_ms", theirs},
          {"ratio", theirs / ours}, {"users", options.users}, {"room_sequences", options.room},
          {"room_tokens", room}};
}

// The parts of a step that are not kernels, as they are reported.
constexpr std::array<std::pair<StepPart, const char*>, 5> kParts = {{
    {StepPart::kRequests, "requests_us"},
    {StepPart::kChoice, "choice_us"},
    {StepPart::kCells, "cells_us"},
    {StepPart::kPlans, "plans_us"},
    {StepPart::kDelivery, "delivery_us"},
}};

// What steps took in which all sequences generate, in microseconds.
struct StepTimes {
  std::array<std::vector<double>, kParts.size()> parts;
  std::vector<double> all;       // the parts together
  std::vector<double> beside;    // by Scheduler::Stats: without passes and samplers
  std::int64_t allocations = 0;  // of the steps together

  void Add(const StepParts& observed) {
    double sum = 0.0;
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      parts[i].push_back(observed.seconds(kParts[i].first) * 1e6);
      sum += parts[i].back();
    }
    all.push_back(sum);
  }
};

// Checks that a request has the tokens that a session chooses for its prompt alone.
void CheckAlone(Engine& engine, const Tokens& prompt, const Tokens& answer) {
  Session session(engine, SequenceId{0});
  Require(session.Append(prompt));
  for (std::size_t i = 0; i < answer.size(); ++i) {
    if (Best(Require(session.LastLogits())) != answer[i]) {
      Fail("a request's token " + std::to_string(i) + " is not that of its prompt alone");
    }
    if (i + 1 < answer.size()) Require(session.Append({&answer[i], 1}));
  }
}

// Runs until all requests have ended.
StepTimes RunSteps(Scheduler& scheduler, int sequences) {
  StepTimes times;
  StepParts observed;
  while (true) {
    const SchedulerStats before = scheduler.Stats();
    const std::int64_t allocations = testing::AllocationCount();
    observed.Clear();
    const bool more = Require(scheduler.Step());
    const std::int64_t allocated = testing::AllocationCount() - allocations;
    const SchedulerStats after = scheduler.Stats();
    const bool all_generate = after.evaluated_tokens - before.evaluated_tokens == sequences &&
                              after.prompt_tokens == before.prompt_tokens;
    if (all_generate && after.live == sequences) {
      times.Add(observed);
      times.beside.push_back(1e6 * ((after.step_seconds - before.step_seconds) -
                                    (after.pass_seconds - before.pass_seconds) -
                                    (after.sampling_seconds - before.sampling_seconds)));
      times.allocations += allocated;
    }
    if (!more) return times;
  }
}

// Sequences that all generate. The first one's tokens are checked against those of its prompt alone.
nlohmann::json Steps(const Options& options, int sequences) {
  const auto engine =
      Require(Engine::Open(options.model, {.threads = options.threads,
                                           .context = options.history + options.steps + 1,
                                           .max_sequences = sequences}));
  Text text(*engine, 2);
  std::vector<Tokens> prompts(static_cast<std::size_t>(sequences));
  std::vector<Tokens> answers(prompts.size());
  StepTimes times;
  {
    // Prompts do not wait, so that all sequences generate soon.
    const auto scheduler =
        Require(Scheduler::Make(*engine, {.step_ms = SchedulerOptions::kMaxStepMs}));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      text.Add(prompts[i], options.history);
      ScheduledRequest request{.prompt = prompts[i],
                               .sampling = {.temperature = options.temperature,
                                            .top_k = options.temperature > 0.0f ? 40 : 0},
                               .max_tokens = options.steps};
      request.on_done = [&answer = answers[i]](const RequestResult& result) {
        Require(result.status);
        answer = result.tokens;
      };
      (void)Require(scheduler->Submit(std::move(request)));
    }
    times = RunSteps(*scheduler, sequences);
  }
  if (times.all.empty()) Fail("no step in which all sequences generate");
  if (options.temperature == 0.0f) CheckAlone(*engine, prompts.front(), answers.front());
  Fnv1a hash;
  for (const Tokens& answer : answers) hash.Add(std::as_bytes(std::span(answer)));
  const double all = Median(times.all);
  nlohmann::json result = {{"name", "step"},
                           {"median_us", all},
                           {"beside_us", Median(times.beside)},
                           {"allocations", times.allocations},
                           {"sequences", sequences},
                           {"history", options.history},
                           {"steps", times.all.size()},
                           {"tokens", HexText(hash.sum())}};
  std::printf("%d sequences of %d tokens: %.1f us a step beside kernels (", sequences,
              options.history, all);
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    const double part = Median(times.parts[i]);
    result[kParts[i].second] = part;
    std::printf("%s %.1f, ", kParts[i].second, part);
  }
  std::printf("%zu steps, %lld allocations, tokens %s; by the statistics %.1f us)\n",
              times.all.size(), static_cast<long long>(times.allocations),
              HexText(hash.sum()).c_str(), Median(times.beside));
  return result;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"Measures the scheduler."};
  app.add_option("--model", options.model, "GGUF file")->required();
  app.add_option("--json", options.json, "file for the results");
  app.add_option("--filter", options.filter, "cases, of: users step");
  app.add_option("--threads", options.threads, "threads");
  app.add_option("--users", options.users, "number of conversations");
  app.add_option("--turns", options.turns, "turns of each conversation");
  app.add_option("--first", options.first_tokens, "tokens of each first message");
  app.add_option("--sequences", options.sequences, "step: numbers of sequences");
  app.add_option("--history", options.history, "step: tokens of each prompt");
  app.add_option("--steps", options.steps, "step: tokens of each answer");
  app.add_option("--temperature", options.temperature, "step: of the samplers");
  CLI11_PARSE(app, argc, argv);
  BenchResult result{.bench = "scheduler",
                     .machine = MachineFacts(options.threads),
                     .settings = {{"model", options.model}},
                     .cases = nlohmann::json::array()};
  const auto wants = [&](const char* name) {
    return options.filter.find(name) != std::string::npos;
  };
  if (wants("step")) {
    for (const int sequences : options.sequences) {
      result.cases.push_back(Steps(options, sequences));
    }
  }
  if (wants("users")) result.cases.push_back(Users(options));
  return WriteResult(options.json, result) ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
