// Measures how a long prompt and requests that generate hold each other up, in ratios within one run.
//
//   long_prompt_bench --model M.gguf --ctx 32768 --prompt 30000 --busy 2
//
// First all continues by itself: streams that generate, the long prompt, and a short one. Then all of it at once, with
// chunks that follow time, and with chunks of a whole pass. Each request must have the logits and the tokens that it
// has by itself.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_program.h"
#include "kvcache_engine/scheduler.h"
#include "long_prompt_requests.h"

namespace kvcache::bench {
namespace {

using Clock = std::chrono::steady_clock;

using Options = LongPromptOptions;

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) Fail("no token was measured");
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

struct Gaps {
  double p50 = 0.0;
  double p99 = 0.0;
  double mean = 0.0;
  explicit Gaps(const std::vector<double>& ms)
      : p50(Percentile(ms, 0.5)), p99(Percentile(ms, 0.99)) {
    for (const double each : ms) mean += each / static_cast<double>(ms.size());
  }
};

constexpr int kWarmTokens = 32;  // of each stream, before the long prompt comes
constexpr int kLongSeed = 1;
constexpr int kBriefSeed = 1000;

// What each request does by itself.
struct Alone {
  std::vector<Tokens> streams;
  std::vector<double> gaps;
  Requests::Prompt large;
  std::vector<Requests::Prompt> brief;
};

Alone MeasureAlone(Engine& engine, const Options& options) {
  Alone alone;
  {
    Requests requests(engine, options, options.step_ms);
    requests.AddStreams();
    requests.Generate(kWarmTokens);
    (void)requests.TakeGaps();
    requests.Generate(options.checked);
    alone.gaps = requests.TakeGaps();
    for (std::size_t i = 0; i < static_cast<std::size_t>(options.streams); ++i) {
      alone.streams.push_back(requests.Beginning(i));
    }
    requests.End();
  }
  Requests requests(engine, options, options.step_ms);
  requests.AddPrompt(alone.large, options.prompt, kLongSeed);
  requests.End();
  alone.brief.resize(static_cast<std::size_t>(options.briefs));
  for (int i = 0; i < options.briefs; ++i) {
    requests.AddPrompt(alone.brief[static_cast<std::size_t>(i)], options.brief, kBriefSeed + i);
    requests.End();
  }
  return alone;
}

void Check(const Requests::Prompt& ours, const Requests::Prompt& alone, const char* what) {
  if (ours.logits != alone.logits) Fail(std::string(what) + " has other logits than by itself");
}

// Returns the case: all requests at once.
nlohmann::json Together(Engine& engine, const Options& options, const Alone& alone, int step_ms,
                        const char* name) {
  Requests requests(engine, options, step_ms);
  requests.AddStreams();
  requests.Generate(kWarmTokens);
  (void)requests.TakeGaps();
  Requests::Prompt large;
  std::vector<Requests::Prompt> brief(static_cast<std::size_t>(options.briefs));
  const auto start = Clock::now();
  requests.AddPrompt(large, options.prompt, kLongSeed);
  for (int sent = 0; !large.done;) {
    if (sent < options.briefs &&
        requests.Read() > options.prompt * (sent + 1) / (options.briefs + 1)) {
      requests.AddPrompt(brief[static_cast<std::size_t>(sent)], options.brief, kBriefSeed + sent);
      ++sent;
    }
    requests.Step();
  }
  const double took = MillisecondsSince(start);
  const std::vector<double> all_gaps = requests.TakeGaps();
  requests.Generate(options.checked);
  requests.End();
  Check(large, alone.large, "the long prompt");
  std::vector<double> first_ms;
  std::vector<double> first_alone_ms;
  for (std::size_t i = 0; i < brief.size(); ++i) {
    if (!brief[i].done) Fail("a short request came too late to be measured");
    Check(brief[i], alone.brief[i], "a short request");
    first_ms.push_back(brief[i].first_token_ms);
    first_alone_ms.push_back(alone.brief[i].first_token_ms);
  }
  for (std::size_t i = 0; i < alone.streams.size(); ++i) {
    if (requests.Beginning(i) != alone.streams[i]) Fail("a stream has other tokens than by itself");
  }
  const Gaps gaps(all_gaps);
  const Gaps own(alone.gaps);
  const double passes = static_cast<double>(all_gaps.size()) / options.streams;
  const double expected = alone.large.first_token_ms + passes * own.mean;
  const double bound = 1.3 * options.step_ms;
  std::printf(
      "%s: between tokens %.1f ms (p99 %.1f), by themselves %.1f (%.1f): + %.2f and %.2f of "
      "--step-ms\n"
      "  a short request's first token %.1f ms, by itself %.1f; the long prompt %.0f ms in %.0f "
      "steps, by"
      " itself %.0f: %.2f of itself and as much decoding\n",
      name, gaps.p50, gaps.p99, own.p50, own.p99, (gaps.p50 - own.p50) / options.step_ms,
      (gaps.p99 - own.p99) / options.step_ms, Percentile(first_ms, 0.5),
      Percentile(first_alone_ms, 0.5), took, passes, alone.large.first_token_ms, took / expected);
  return {{"name", name},
          {"prompt", options.prompt},
          {"streams", options.streams},
          {"busy", options.busy},
          {"step_ms", options.step_ms},
          {"gap_p50_ms", gaps.p50},
          {"gap_p99_ms", gaps.p99},
          {"own_p50_ms", own.p50},
          {"own_p99_ms", own.p99},
          {"p50_within", gaps.p50 <= own.p50 + bound},
          {"p99_within", gaps.p99 <= own.p99 + bound},
          {"first_token_ms", Percentile(first_ms, 0.5)},
          {"first_token_alone_ms", Percentile(first_alone_ms, 0.5)},
          {"prompt_ms", took},
          {"prompt_alone_ms", alone.large.first_token_ms},
          {"slower", took / expected}};
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"Measures how a long prompt and requests that generate hold each other up."};
  app.add_option("--model", options.model, "GGUF file")->required();
  app.add_option("--json", options.json, "file for the results");
  app.add_option("--threads", options.threads, "threads");
  app.add_option("--ctx", options.context, "context");
  app.add_option("--prompt", options.prompt, "tokens of the long prompt");
  app.add_option("--streams", options.streams, "requests that generate");
  app.add_option("--briefs", options.briefs, "short requests while the long prompt is read");
  app.add_option("--step-ms", options.step_ms, "as of kvcache serve");
  app.add_option("--busy", options.busy, "threads of other work");
  app.add_flag("!--no-whole", options.with_whole, "do not measure chunks of a whole pass");
  CLI11_PARSE(app, argc, argv);
  const int room = options.prompt + options.streams * 4096;
  const auto engine = Require(Engine::Open(options.model, {.threads = options.threads,
                                                           .context = options.context,
                                                           .max_sequences = options.streams + 2,
                                                           .pool_tokens = room}));
  const BusyLoops loops(options.busy);
  const Alone alone = MeasureAlone(*engine, options);
  BenchResult result{.bench = "long_prompt",
                     .machine = MachineFacts(options.threads),
                     .settings = {{"model", options.model}},
                     .cases = nlohmann::json::array()};
  result.cases.push_back(Together(*engine, options, alone, options.step_ms, "chunks follow time"));
  if (options.with_whole) {
    result.cases.push_back(
        Together(*engine, options, alone, SchedulerOptions::kMaxStepMs, "chunks of a whole pass"));
  }
  return WriteResult(options.json, result) ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
