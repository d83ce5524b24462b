// Compares attention with the machine's limits: decode with the bandwidth of loops that only sum
// the same bytes, prefill with the rates of multiply-adds, in f32 or, for keys and values of block
// types, in int8. Each case first checks its result against double precision, then measures limit
// and kernel alternately.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attention_setting.h"
#include "bench_program.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"

namespace kvcache::bench {
namespace {

struct Options : ProgramOptions {
  // Bytes read between two readings of the same history, to evict it from the caches; with 0, a
  // short history stays in them.
  std::int64_t cold_megabytes = 512;
};

// A case's limits, in its unit.
struct Limits {
  double best;   // decode: the better of the two loops that read; prefill: the arithmetic's peak
  double plain;  // decode: the loop that reads without prefetching; prefill: 0
};

struct Measured {
  Timing timing;
  double rate;  // GB/s or GFLOP/s, from the median time
  Limits limits;
};

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Measures the machine's limits: medians for reading, since the cases' rates are of median times,
// and the best for the peaks of multiply-adds.
class LimitMeter {
 public:
  LimitMeter(ThreadPool& pool, const AttentionSetting& setting, const AttentionCase& c, Clock clock)
      : pool_(pool), setting_(setting), case_(c), clock_(clock) {}

  // Measures for `duration` seconds, at least once.
  void Measure(double duration) {
    const double start = Seconds(clock_);
    do {
      if (case_.prefill()) {
        f32_ = std::max(f32_, FmaGflops(pool_, clock_));
        int8_ = std::max(int8_, Int8DotGops(pool_, IntegerProducts::kBytes, clock_));
      } else {
        plain_.push_back(Read(Reading::kPlain));
        best_.push_back(std::max(plain_.back(), Read(Reading::kFetchingAhead)));
      }
    } while (Seconds(clock_) - start < duration);
  }

  // Prefill is two products of as many operations, each at its own peak.
  Limits Found() const {
    if (!case_.prefill()) return {MedianOf(best_), MedianOf(plain_)};
    return {2.0 / (1.0 / ScoresPeak() + 1.0 / SumsPeak()), 0.0};
  }

 private:
  double Read(Reading reading) const {
    return static_cast<double>(setting_.Memory().size()) * 1e-9 /
           SecondsToRead(pool_, setting_.Memory(), clock_, reading);
  }

  bool InInt8(DType type) const { return InfoOf(type).block_size > 1 && int8_ > 0.0; }
  double ScoresPeak() const { return InInt8(case_.k_type) ? int8_ : f32_; }
  // A weight of 16 bits takes two int8 dot products.
  double SumsPeak() const { return InInt8(case_.v_type) ? int8_ / 2.0 : f32_; }

  ThreadPool& pool_;
  const AttentionSetting& setting_;
  const AttentionCase& case_;
  Clock clock_;
  std::vector<double> plain_;
  std::vector<double> best_;
  double f32_ = 0.0;
  double int8_ = 0.0;
};

// The first measurement of the limit is long, so that the scheduler gives each thread a processor.
Measured Measure(ThreadPool& pool, AttentionSetting& setting, const AttentionCase& c,
                 const Options& options) {
  constexpr double kFirstSeconds = 0.3;
  constexpr double kRoundSeconds = 0.02;
  const Clock clock = options.clock;
  LimitMeter limits(pool, setting, c, clock);
  std::vector<double> seconds;
  limits.Measure(kFirstSeconds);
  for (int round = 0; round < options.rounds; ++round) {
    limits.Measure(kRoundSeconds);
    const double start = Seconds(clock);
    do {
      const double begin = Seconds(clock);
      setting.Run();
      seconds.push_back(Seconds(clock) - begin);
    } while (Seconds(clock) - start < kRoundSeconds);
  }
  const Timing timing(std::move(seconds));
  const double work =
      c.prefill() ? 2.0 * c.GigaOperations() : 1e-9 * static_cast<double>(c.NeededBytes());
  return {timing, work / timing.median, limits.Found()};
}

struct Pair {
  DType k;
  DType v;
};
constexpr DType kMainTypes[] = {DType::kF16, DType::kQ8_0, DType::kQ4_0};
constexpr Pair kOtherTypes[] = {{DType::kBF16, DType::kBF16}, {DType::kF32, DType::kF32},
                                {DType::kQ8_0, DType::kF16},  {DType::kF16, DType::kQ8_0},
                                {DType::kQ8_0, DType::kQ4_0}, {DType::kQ4_0, DType::kQ8_0}};

// Cases with heads of 128 values: decoding over growing histories, a batch of sequences, five query
// tokens (speculation), sequences that share all but their end (a tree of drafts, or one prompt),
// prefill, and a window at two positions.
void AddCases(DType type, std::vector<AttentionCase>& cases) {
  constexpr std::int64_t kMaxBytes = 6'000'000'000;
  const auto add = [&](const char* kind, int history, int queries, int batch, int window = 0) {
    const AttentionCase c{kind, history, queries, batch, 128, type, type, window};
    if (c.LayerBytes() < kMaxBytes) cases.push_back(c);
  };
  for (const int history : {1024, 4096, 16384, 32768, 65536, 131072}) add("decode", history, 1, 1);
  for (const int history : {1024, 4096, 16384, 32768, 131072}) add("decode", history, 1, 16);
  add("decode", 16384, 5, 1);
  for (const int batch : {4, 16}) {
    cases.push_back({"shared", 32768, 1, batch, 128, type, type, 0, 32768 - 64});
  }
  for (const int history : {512, 4608, 33280}) add("prefill", history, 512, 1);
  for (const int history : {8192, 100000}) add("window", history, 1, 1, 4096);
}

std::vector<AttentionCase> Cases() {
  std::vector<AttentionCase> cases;
  const auto add_two = [&](int head_dim, Pair types) {
    cases.push_back({"decode", 16384, 1, 1, head_dim, types.k, types.v});
    cases.push_back({"prefill", 4608, 512, 1, head_dim, types.k, types.v});
  };
  for (const DType type : kMainTypes) AddCases(type, cases);
  for (const DType type : kMainTypes) add_two(64, {type, type});
  for (const Pair types : kOtherTypes) add_two(128, types);
  return cases;
}

nlohmann::json Json(const AttentionCase& c, const Measured& m, const std::string& name) {
  nlohmann::json json = m.timing.Json();
  json.update({{"name", name},
               {"kind", c.kind},
               {"history", c.history},
               {"queries", c.queries},
               {"batch", c.batch},
               {"heads", AttentionCase::kHeads},
               {"kv_heads", AttentionCase::kKvHeads},
               {"head_dim", c.head_dim},
               {"type", c.Type()},
               {"k_type", InfoOf(c.k_type).name},
               {"v_type", InfoOf(c.v_type).name},
               {"window", c.window},
               {"shared", c.shared},
               {"target", CpuTargetName()},
               {"rate", m.rate},
               {"unit", c.prefill() ? "GFLOP/s" : "GB/s"},
               {"rate_of", "median"},
               {"limit", m.limits.best},
               {"share", m.rate / m.limits.best}});
  if (!c.prefill()) {
    json["plain_limit"] = m.limits.plain;
    json["plain_share"] = m.rate / m.limits.plain;
  }
  return json;
}

void Print(const AttentionCase& c, const Measured& m, const std::string& name) {
  std::printf("%-58s best %8.3f ms  median %8.3f  p99 %8.3f  %7.1f %s = %3.0f%% of %.1f",
              name.c_str(), m.timing.best * 1e3, m.timing.median * 1e3, m.timing.p99 * 1e3, m.rate,
              c.prefill() ? "GFLOP/s" : "GB/s   ", 100.0 * m.rate / m.limits.best, m.limits.best);
  if (!c.prefill()) {
    std::printf(", %3.0f%% of %.1f", 100.0 * m.rate / m.limits.plain, m.limits.plain);
  }
  std::printf("\n");
  std::fflush(stdout);
}

bool RunCase(ThreadPool& pool, const AttentionCase& c, const Options& options,
             nlohmann::json& results) {
  const std::string name = c.Name() + (options.target.empty() ? "" : " " + options.target);
  // A cache with a window at 100,000 is too large for many layers, so its window stays in the
  // processor's caches; the one at 8,192 is set up in the same way.
  const bool cold = !c.prefill() && c.window == 0;
  AttentionSetting setting(pool, c, cold ? 1'000'000 * options.cold_megabytes : 0);
  if (!setting.ok()) {
    std::fprintf(stderr, "%s: skipped, because there is not enough memory\n", name.c_str());
    return true;
  }
  if (!setting.Run()) return false;
  const double error = setting.Error();
  if (!(error < setting.Tolerance())) {
    std::fprintf(stderr, "%s: differs from double precision by %g\n", name.c_str(), error);
    return false;
  }
  const Measured m = Measure(pool, setting, c, options);
  Print(c, m, name);
  results.push_back(Json(c, m, name));
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Compares attention with the machine's limits");
  AddOptions(app, options);
  app.add_option("--cold-megabytes", options.cold_megabytes,
                 "megabytes read between two readings of the same bytes, to evict them from caches")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  ThreadPool pool(options.threads);
  std::printf("%s, %d threads\n", CpuTargetName().c_str(), options.threads);
  nlohmann::json results = nlohmann::json::array();
  for (const AttentionCase& c : Cases()) {
    if (!options.Wants(c.Name())) continue;
    if (!RunCase(pool, c, options, results)) return 1;
  }
  nlohmann::json settings = options.Settings();
  settings["cold_megabytes"] = options.cold_megabytes;
  const bool written = WriteResult(options.json, {"attention", MachineFacts(options.threads),
                                                  std::move(settings), std::move(results)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
