// Measures the cost of a forward pass before any layer runs: claiming cells and describing the
// visibility.
//
//   metadata_bench [--rounds=N] [--json=FILE]      bench/README.md describes the file
//
// Times StartForward for a decode step of 64 sequences, a prefill of 512 tokens, and a decode step
// into a cache whose free cells are all single; with sliding windows, with recurrent states, and in
// a wrapper of a window and a full cache. Caches have 1,000 to 1,000,000 cells, and the time must
// not grow with them. Each call is timed alone, including about 30 ns for the clock, and its result
// is checked. Allocations are counted. Nothing is random, so there is no seed.
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
#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/wrapper_cache.h"
#include "support/counting_new.h"

namespace kvcache {
namespace {

using bench::Fail;
using bench::Require;

using Clock = std::chrono::steady_clock;

constexpr int kStateSize = 16;

struct Samples {
  std::vector<double> us;
  std::int64_t allocations = 0;

  double Percentile(double share) {
    std::sort(us.begin(), us.end());
    return us[static_cast<std::size_t>(share * static_cast<double>(us.size() - 1))];
  }
};

// A cache of `sequences` × `capacity` cells, by default with full attention, and a batch.
class Bench {
 public:
  Bench(KvBackend& backend, int sequences, int capacity, int max_batch,
        std::unique_ptr<Cache> cache = MakeCausalCache())
      : cache_(std::move(cache)) {
    Require(cache_->Init(backend, {DType::kF16, DType::kF16, sequences, capacity, max_batch}));
  }

  Cache& cache() { return *cache_; }
  void Add(int sequence, Position position) {
    sequences_.push_back(SequenceId{sequence});
    positions_.push_back(position);
  }
  void Clear() {
    sequences_.clear();
    positions_.clear();
  }

  // Runs the batch. Times it if `samples` is not null.
  void Run(Samples* samples) {
    const Batch batch{positions_, sequences_, {}};
    const std::int64_t before = testing::AllocationCount();
    const Clock::time_point start = Clock::now();
    const Status status = cache_->StartForward(batch, ForwardMode::kCompute);
    const Clock::time_point end = Clock::now();
    const std::int64_t made = testing::AllocationCount() - before;
    Require(status);
    Check();
    if (RecurrentCache* states = cache_->Recurrent(); states != nullptr) Update(*states);
    if (samples == nullptr) return;
    samples->us.push_back(std::chrono::duration<double, std::micro>(end - start).count());
    samples->allocations += made;
  }

 private:
  // Checks that every query exists and that its history ends at or after it.
  void Check() const {
    const Visibility& visible = cache_->Visible();
    if (visible.positions.size() != positions_.size()) Fail("a query is missing");
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const HistoryRun& last = visible.histories[visible.history_of_query[i]].back();
      if (visible.positions[i] != positions_[i] || last.position + last.length <= positions_[i]) {
        Fail("a query's history does not include its own position");
      }
    }
  }

  // Updates the one recurrent layer, which completes the pass.
  static void Update(RecurrentCache& states) {
    constexpr std::int64_t kDims[] = {kStateSize};
    auto next = states.NextRecurrentState(0, kDims);
    if (!next.ok()) Fail(next.status().message());
    Require(states.UpdateRecurrentState(0, *next));
  }

  std::unique_ptr<Cache> cache_;
  std::vector<SequenceId> sequences_;
  std::vector<Position> positions_;
};

// 64 sequences grow by a token each, from half of their capacity to the end, repeatedly.
Samples Decode(KvBackend& backend, int cells, int rounds) {
  constexpr int kSequences = 64;
  const int capacity = cells / kSequences;
  Bench bench(backend, kSequences, capacity, kSequences * capacity);
  for (int s = 0; s < kSequences; ++s) {
    for (Position p = 0; p < capacity / 2; ++p) bench.Add(s, p);
  }
  bench.Run(nullptr);
  Samples samples;
  Position position = capacity / 2;
  for (int round = -100; round < rounds; ++round) {
    if (position == capacity) {
      position = capacity / 2;
      for (int s = 0; s < kSequences; ++s) {
        Require(bench.cache().Remove(SequenceId{s}, position, kEndOfSequence));
      }
    }
    bench.Clear();
    for (int s = 0; s < kSequences; ++s) bench.Add(s, position);
    bench.Run(round < 0 ? nullptr : &samples);
    ++position;
  }
  return samples;
}

constexpr int kDecoding = 64;
constexpr int kUnbounded = 1 << 24;  // positions: more than any run here reaches

// Returns the window for which a cache of 64 sequences and batches of 64 has `cells` cells.
int WindowFor(int cells) {
  return std::max(1, cells / kDecoding - 2);
}

std::unique_ptr<Cache> SlidingAndFull(int cells) {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache({.window = WindowFor(cells)}));
  options.caches.push_back(MakeCausalCache());
  return MakeWrapperCache(std::move(options));
}

std::unique_ptr<Cache> Recurrent() {
  return MakeRecurrentCache({.layers = {0}, .state_size = kStateSize});
}

// 64 sequences with a sliding window: each step claims a cell and frees one.
Samples Slide(KvBackend& backend, int cells, int rounds) {
  Bench bench(backend, kDecoding, kUnbounded, kDecoding,
              MakeCausalCache({.window = WindowFor(cells)}));
  Samples samples;
  const int fill = 2 * WindowFor(cells);
  for (int position = 0; position < fill + rounds; ++position) {
    bench.Clear();
    for (int s = 0; s < kDecoding; ++s) bench.Add(s, position);
    bench.Run(position < fill ? nullptr : &samples);
  }
  return samples;
}

// 512 tokens of one sequence with a sliding window: 512 older ones are evicted.
Samples SlidingPrefill(KvBackend& backend, int cells, int rounds) {
  constexpr int kTokens = 512;
  const int window = std::max(1, cells - kTokens);
  Bench bench(backend, 1, kUnbounded, kTokens, MakeCausalCache({.window = window}));
  Samples samples;
  const int fill = cells / kTokens + 2;
  for (int round = -fill; round < rounds; ++round) {
    bench.Clear();
    for (int i = 0; i < kTokens; ++i) bench.Add(0, (round + fill) * kTokens + i);
    bench.Run(round < 0 ? nullptr : &samples);
  }
  return samples;
}

// 64 sequences grow from nothing to a fixed depth, repeatedly, in a cache of another kind.
Samples DecodeIn(KvBackend& backend, int cells, int rounds, std::unique_ptr<Cache> cache) {
  const int capacity = std::max(16, cells / kDecoding);
  Bench bench(backend, kDecoding, capacity, kDecoding, std::move(cache));
  Samples samples;
  Position position = 0;
  for (int round = -2 * capacity; round < rounds; ++round) {
    if (position == capacity) {
      position = 0;
      for (int s = 0; s < kDecoding; ++s) {
        Require(bench.cache().Remove(SequenceId{s}, 0, kEndOfSequence));
      }
    }
    bench.Clear();
    for (int s = 0; s < kDecoding; ++s) bench.Add(s, position);
    bench.Run(round < 0 ? nullptr : &samples);
    ++position;
  }
  return samples;
}

// 512 tokens of one sequence, while another keeps half of the cells.
Samples Prefill(KvBackend& backend, int cells, int rounds) {
  constexpr int kTokens = 512;
  Bench bench(backend, 2, cells / 2, std::max(cells / 2, kTokens));
  for (Position p = 0; p < cells / 2; ++p) bench.Add(0, p);
  bench.Run(nullptr);
  bench.Clear();
  for (Position p = 0; p < kTokens; ++p) bench.Add(1, p);
  Samples samples;
  for (int round = -10; round < rounds; ++round) {
    bench.Run(round < 0 ? nullptr : &samples);
    Require(bench.cache().Remove(SequenceId{1}, 0, kEndOfSequence));
  }
  return samples;
}

// The worst case: sequence 0 holds all cells except every other one of the last 1,024, so that each
// token of sequences 1 to 8 starts a run of its own, in a hole far from its preferred cell.
Samples Holes(KvBackend& backend, int cells, int rounds) {
  constexpr int kSequences = 8;
  constexpr int kDepth = 48;
  Bench bench(backend, kSequences + 1, cells / (kSequences + 1) + 1, cells);
  constexpr int kHoled = 1024;
  for (Position p = 0; p < cells; p += p < cells - kHoled ? 1 : 2) bench.Add(0, p);
  bench.Run(nullptr);
  Samples samples;
  Position position = 0;
  for (int round = -100; round < rounds; ++round) {
    if (position == kDepth) {
      position = 0;
      for (int s = 1; s <= kSequences; ++s) {
        Require(bench.cache().Remove(SequenceId{s}, 0, kEndOfSequence));
      }
    }
    bench.Clear();
    for (int s = 1; s <= kSequences; ++s) bench.Add(s, position);
    bench.Run(round < 0 ? nullptr : &samples);
    ++position;
  }
  return samples;
}

void Print(const char* name, int cells, Samples samples, nlohmann::json& cases) {
  const double best = samples.Percentile(0.0);
  const double median = samples.Percentile(0.5);
  const double p99 = samples.Percentile(0.99);
  std::printf("%-32s %9d %10.2f %10.2f %10.2f %12lld\n", name, cells, median, best, p99,
              static_cast<long long>(samples.allocations));
  cases.push_back({{"name", name + (" in " + std::to_string(cells)) + " cells"},
                   {"kind", name},
                   {"cells", cells},
                   {"best_ms", best * 1e-3},
                   {"median_ms", median * 1e-3},
                   {"p99_ms", p99 * 1e-3},
                   {"allocations", samples.allocations}});
}

nlohmann::json Measure(KvBackend& backend, int rounds) {
  nlohmann::json cases = nlohmann::json::array();
  for (const int cells : {1 << 10, 1 << 14, 1 << 17, 1 << 20}) {
    const auto print = [&](const char* name, Samples samples) {
      Print(name, cells, std::move(samples), cases);
    };
    print("decode of 64 sequences", Decode(backend, cells, rounds));
    print("prefill of 512 tokens", Prefill(backend, cells, rounds));
    print("decode of 8, single free cells", Holes(backend, cells, rounds));
    print("decode of 64, sliding window", Slide(backend, cells, rounds));
    print("prefill of 512, sliding window", SlidingPrefill(backend, cells, rounds));
    print("decode of 64, recurrent", DecodeIn(backend, cells, rounds, Recurrent()));
    print("decode of 64, wrapper", DecodeIn(backend, cells, rounds, SlidingAndFull(cells)));
  }
  return cases;
}

int Main(int argc, char** argv) {
  std::string file;
  int rounds = 2000;
  CLI::App app("Measures the cost of a forward pass before any layer runs");
  app.add_option("--rounds", rounds, "number of timed calls of a case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", file, "also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  auto backend = MakeCpuBackend({.threads = 1});
  if (!backend.ok()) Fail(backend.status().message());
  const nlohmann::json machine = bench::MachineFacts(1);
  std::printf("machine %s, compiler %s, asserts %s, %d rounds\n", CpuTargetName().c_str(),
              __VERSION__, machine["asserts"].get<std::string>().c_str(), rounds);
  std::printf("%-32s %9s %10s %10s %10s %12s\n", "StartForward", "cells", "median µs", "best µs",
              "p99 µs", "allocations");
  nlohmann::json cases = Measure(**backend, rounds);
  const bool written =
      bench::WriteResult(file, {"metadata", machine, {{"rounds", rounds}}, std::move(cases)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  return kvcache::Main(argc, argv);
}
