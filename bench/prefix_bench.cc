// Measures the prefix cache's own cost, with a trie of 1,000,000 nodes.
//
//   prefix_bench [--nodes=N] [--rounds=N] [--json=FILE]      bench/README.md describes the file
//
// Conversations share the beginnings of their prompts, and most of their nodes have 16 tokens. Times Begin
// and Close of prompts that match between 16 and 65,536 tokens, in nodes of 16 and of 256 tokens, at the
// end of a node and inside one; and Evict. Each call is timed alone and its result is checked. The limit
// of Begin is 10 µs and 5 ns for each matched token. Nothing is random, so there is no seed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench_program.h"
#include "kvcache/prefix_cache.h"

namespace kvcache {
namespace {

using bench::Fail;

using Clock = std::chrono::steady_clock;
using Keys = std::vector<PrefixKey>;

constexpr Position kTurn = 16;  // tokens of most nodes
constexpr Position kLargeNode = 256;
constexpr double kLimitUs = 10.0;
constexpr double kLimitNsPerToken = 5.0;

// States that are nothing.
class NoStates : public PrefixStates {
 public:
  void Drop(PrefixState /*state*/) override {}
  bool Truncate(PrefixState /*state*/, Position /*length*/) override { return true; }
};

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Times {
  std::vector<double> begin_us;
  std::vector<double> close_us;
};

class Bench {
 public:
  Bench() {
    auto made = PrefixCache::Make(states_, {.divisible = false, .recompute_bound = kTurn});
    if (!made.ok()) Fail(made.status().message());
    cache_ = *std::move(made);
  }

  PrefixCache& cache() { return *cache_; }

  // The token at `position` of a conversation. Conversation c shares its first tokens with all
  // conversations that have the same c / 2, more of them with the same c / 4, and so on.
  static PrefixKey KeyOf(std::uint64_t conversation, Position position) {
    const int turn = position / kTurn;
    const std::uint64_t branch = turn < 16 ? conversation >> (16 - turn) : conversation;
    return (branch * 1000003 + static_cast<std::uint64_t>(turn)) * 64 + position % kTurn;
  }
  static Keys KeysOf(std::uint64_t conversation, Position length) {
    Keys keys;
    for (Position p = 0; p < length; ++p) keys.push_back(KeyOf(conversation, p));
    return keys;
  }

  // Adds a conversation with a state after each `node` tokens.
  void Add(std::uint64_t conversation, Position length, Position node) {
    const Keys keys = KeysOf(conversation, length);
    const PrefixPlan plan = *cache_->Begin({.keys = keys}, ++now_);
    for (Position at = plan.resumed / node * node + node; at <= length; at += node) {
      if (!cache_->Extend(plan.request, at, PrefixState{++last_}).ok()) Fail("Extend failed");
    }
    cache_->Close(plan.request, ++now_);
  }

  // Begins and ends a request that matches `matched` tokens and continues otherwise.
  void Time(std::uint64_t conversation, Position matched, Position node, Times& times) {
    Keys keys = KeysOf(conversation, matched);
    for (int i = 0; i < kTurn; ++i) keys.push_back(~std::uint64_t{0} - ++unique_);
    Clock::time_point start = Clock::now();
    const auto plan = cache_->Begin({.keys = keys}, ++now_);
    times.begin_us.push_back(MicrosecondsSince(start));
    if (!plan.ok()) Fail(plan.status().message());
    if (plan->matched != matched) Fail("Begin did not match what is there");
    if (plan->resumed != matched / node * node) Fail("Begin did not find the last state");
    start = Clock::now();
    cache_->Close(plan->request, ++now_);
    times.close_us.push_back(MicrosecondsSince(start));
  }

 private:
  NoStates states_;
  std::unique_ptr<PrefixCache> cache_;
  double now_ = 0.0;
  std::uint64_t last_ = 0;
  std::uint64_t unique_ = 0;
};

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

void Print(const std::string& name, const std::vector<double>& us, nlohmann::json& cases) {
  const double best = Percentile(us, 0.0);
  const double median = Percentile(us, 0.5);
  const double p99 = Percentile(us, 0.99);
  std::printf("%-52s %10.2f %10.2f %10.2f\n", name.c_str(), median, best, p99);
  cases.push_back({{"name", name},
                   {"best_ms", best * 1e-3},
                   {"median_ms", median * 1e-3},
                   {"p99_ms", p99 * 1e-3}});
}

// Conversations whose matches are timed, four for each size of node.
constexpr std::uint64_t kTimed = 4;
constexpr std::uint64_t TimedConversation(std::uint64_t i, Position node) {
  return (static_cast<std::uint64_t>(node) * kTimed + i % kTimed) << 32;
}

void Fill(Bench& bench, std::int64_t nodes) {
  for (const Position node : {kTurn, kLargeNode}) {
    for (std::uint64_t i = 0; i < kTimed; ++i) bench.Add(TimedConversation(i, node), 1 << 17, node);
  }
  for (std::uint64_t c = 1; bench.cache().Stats().nodes < nodes; ++c) bench.Add(c * 7, 512, kTurn);
}

void MeasureRequests(Bench& bench, Position node, Position matched, int rounds,
                     nlohmann::json& cases) {
  Times times;
  for (int i = 0; i < rounds; ++i) {
    bench.Time(TimedConversation(static_cast<std::uint64_t>(i), node), matched, node, times);
  }
  const std::string place = std::to_string(matched) + " tokens in nodes of " + std::to_string(node);
  Print("Begin, matches " + place, times.begin_us, cases);
  cases.back()["limit_ms"] = 1e-3 * (kLimitUs + 1e-3 * kLimitNsPerToken * matched);
  Print("Close, matches " + place, times.close_us, cases);
}

nlohmann::json Measure(std::int64_t nodes, int rounds) {
  Bench bench;
  Fill(bench, nodes);
  const PrefixStats stats = bench.cache().Stats();
  const double each = static_cast<double>(stats.bytes) / static_cast<double>(stats.tokens);
  std::printf("%lld nodes, %lld tokens, %.1f bytes a token\n", static_cast<long long>(stats.nodes),
              static_cast<long long>(stats.tokens), each);
  std::printf("%-52s %10s %10s %10s\n", "", "median µs", "best µs", "p99 µs");
  nlohmann::json cases = nlohmann::json::array();
  for (const Position node : {kTurn, kLargeNode}) {
    for (const Position matched : {256, 4096, 65536}) {
      MeasureRequests(bench, node, matched, rounds, cases);
      MeasureRequests(bench, node, matched + node / 2, rounds, cases);
    }
  }
  std::vector<double> evict_us;
  for (int i = 0; i < rounds; ++i) {
    const Clock::time_point start = Clock::now();
    if (bench.cache().Evict(kTurn) < 0) Fail("nothing can go");
    evict_us.push_back(MicrosecondsSince(start));
  }
  Print("Evict of one state", evict_us, cases);
  cases.push_back({{"name", "memory"}, {"nodes", stats.nodes}, {"bytes_per_token", each}});
  return cases;
}

int Main(int argc, char** argv) {
  std::string file;
  int rounds = 500;
  std::int64_t nodes = 1'000'000;
  CLI::App app("Measures the prefix cache's own cost");
  app.add_option("--rounds", rounds, "number of timed calls of a case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--nodes", nodes, "nodes of the trie")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", file, "also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json cases = Measure(nodes, rounds);
  const bool written = bench::WriteResult(
      file, {"prefix", bench::MachineFacts(1), {{"rounds", rounds}}, std::move(cases)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  return kvcache::Main(argc, argv);
}
