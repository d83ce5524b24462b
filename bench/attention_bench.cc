// Attention against the machine's limits: decoding against the bandwidth of loops that only
// sum the same bytes, prefill against the rates of multiply-adds, in f32 and, for the scores of
// keys in blocks, in int8. Each case first checks its result against double precision, then
// measures limit and kernel in turn.
//
//   attention_bench [--threads=N] [--rounds=N] [--filter=TEXT] [--json=FILE] [--clock=cpu]
//                   [--cold-megabytes=N]
//
// --clock=cpu counts the process's own processor time instead of the wall's, for one thread on
// a machine that others use too. --cold-megabytes (512) is what passes through the processor's
// caches between two readings of the same bytes; with 0, a short history stays in them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "attention_setting.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"

namespace kvcache::bench {
namespace {

struct Options {
  int threads = AvailableProcessors();
  int rounds = 15;
  std::string filter;
  std::string json;
  Clock clock = Clock::kWall;
  std::int64_t cold_bytes = 512'000'000;
};

struct Timing {
  double best = 0.0;
  double median = 0.0;
  double p99 = 0.0;
};

Timing Summary(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const std::size_t n = seconds.size();
  return {seconds.front(), seconds[n / 2], seconds[std::min(n - 1, n * 99 / 100)]};
}

struct Measured {
  Timing timing;
  double rate;   // GB/s or GFLOP/s, of the median
  double limit;  // in the same unit
};

// What the machine allows: the median of readings, each by the faster of two loops, as the rates
// beside it are of median times; the best of the peaks of multiply-adds.
class Limit {
 public:
  Limit(ThreadPool& pool, const AttentionSetting& setting, const AttentionCase& c, Clock clock)
      : pool_(pool), setting_(setting), case_(c), clock_(clock) {}

  // Looks for `duration`, once at least.
  void Measure(double duration) {
    const double start = Seconds(clock_);
    do {
      if (case_.prefill()) {
        f32_ = std::max(f32_, FmaGflops(pool_, clock_));
        if (InInt8()) int8_ = std::max(int8_, Int8DotGops(pool_, clock_));
      } else {
        bandwidths_.push_back(Read());
      }
    } while (Seconds(clock_) - start < duration);
  }

  // GB/s; or GFLOP/s: of two products of as many operations, each at its own peak.
  double Rate() {
    if (case_.prefill()) return int8_ > 0.0 ? 2.0 / (1.0 / int8_ + 1.0 / f32_) : f32_;
    std::sort(bandwidths_.begin(), bandwidths_.end());
    return bandwidths_[bandwidths_.size() / 2];
  }

 private:
  double Read() {
    double seconds = 1e9;
    for (const Reading reading : {Reading::kPlain, Reading::kFetchingAhead}) {
      seconds = std::min(seconds, SecondsToRead(pool_, setting_.Memory(), clock_, reading));
    }
    return static_cast<double>(setting_.Memory().size()) * 1e-9 / seconds;
  }

  bool InInt8() const { return InfoOf(case_.k_type).block_size > 1; }

  ThreadPool& pool_;
  const AttentionSetting& setting_;
  const AttentionCase& case_;
  Clock clock_;
  std::vector<double> bandwidths_;
  double f32_ = 0.0;
  double int8_ = 0.0;
};

// The first look at the limit is long, so that the pool's threads find processors of their own.
Measured Measure(ThreadPool& pool, AttentionSetting& setting, const AttentionCase& c,
                 const Options& options) {
  constexpr double kFirstSeconds = 0.3;
  constexpr double kRoundSeconds = 0.02;
  const Clock clock = options.clock;
  Limit limit(pool, setting, c, clock);
  std::vector<double> seconds;
  limit.Measure(kFirstSeconds);
  for (int round = 0; round < options.rounds; ++round) {
    limit.Measure(kRoundSeconds);
    const double start = Seconds(clock);
    do {
      const double begin = Seconds(clock);
      setting.Run();
      seconds.push_back(Seconds(clock) - begin);
    } while (Seconds(clock) - start < kRoundSeconds);
  }
  const Timing timing = Summary(seconds);
  const double work =
      c.prefill() ? 2.0 * c.GigaOperations() : 1e-9 * static_cast<double>(c.NeededBytes());
  return {timing, work / timing.median, limit.Rate()};
}

constexpr DType kTypes[] = {DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kBF16, DType::kF32};
struct Pair {
  DType k;
  DType v;
};
constexpr Pair kMixed[] = {{DType::kQ8_0, DType::kF16},
                           {DType::kF16, DType::kQ8_0},
                           {DType::kQ8_0, DType::kQ4_0},
                           {DType::kQ4_0, DType::kQ8_0}};

// Of heads of 128 values: decoding over growing histories, a batch of sequences, five query
// tokens (speculation), prefill, and a window at two positions.
void AddCases(Pair types, std::vector<AttentionCase>& cases) {
  constexpr std::int64_t kMostBytes = 6'000'000'000;
  const auto add = [&](const char* kind, int history, int queries, int batch, int window = 0) {
    const AttentionCase c{kind, history, queries, batch, 128, types.k, types.v, window};
    if (c.LayerBytes() < kMostBytes) cases.push_back(c);
  };
  for (const int batch : {1, 16}) {
    for (const int history : {1024, 4096, 16384, 32768, 131072}) add("decode", history, 1, batch);
  }
  add("decode", 16384, 5, 1);
  for (const int history : {512, 4608, 33280}) add("prefill", history, 512, 1);
  for (const int history : {8192, 100000}) add("window", history, 1, 1, 4096);
}

std::vector<AttentionCase> Cases() {
  std::vector<AttentionCase> cases;
  for (const DType type : kTypes) AddCases({type, type}, cases);
  for (const Pair types : kMixed) {
    cases.push_back({"decode", 16384, 1, 1, 128, types.k, types.v});
    cases.push_back({"prefill", 4608, 512, 1, 128, types.k, types.v});
  }
  for (const DType type : kTypes) {
    cases.push_back({"decode", 16384, 1, 1, 64, type, type});
    cases.push_back({"prefill", 4608, 512, 1, 64, type, type});
  }
  return cases;
}

std::string Json(const AttentionCase& c, const Measured& m) {
  char line[768];
  std::snprintf(line, sizeof line,
                "{\"name\": \"%s\", \"kind\": \"%s\", \"history\": %d, \"queries\": %d, "
                "\"batch\": %d, \"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, "
                "\"type\": \"%s\", \"k_type\": \"%s\", \"v_type\": \"%s\", \"window\": %d, "
                "\"best_ms\": %.4f, \"median_ms\": %.4f, \"p99_ms\": %.4f, \"rate\": %.2f, "
                "\"unit\": \"%s\", \"rate_of\": \"median\", \"limit\": %.2f, \"share\": %.3f}",
                c.Name().c_str(), c.kind.c_str(), c.history, c.queries, c.batch,
                AttentionCase::kHeads, AttentionCase::kKvHeads, c.head_dim, c.Type().c_str(),
                std::string(InfoOf(c.k_type).name).c_str(),
                std::string(InfoOf(c.v_type).name).c_str(), c.window, m.timing.best * 1e3,
                m.timing.median * 1e3, m.timing.p99 * 1e3, m.rate, c.prefill() ? "GFLOP/s" : "GB/s",
                m.limit, m.rate / m.limit);
  return line;
}

bool RunCase(ThreadPool& pool, const AttentionCase& c, const Options& options,
             std::vector<std::string>& lines) {
  // A window at 100,000 leaves no room for many layers: what it reads stays in the caches, and so
  // does what the one at 8,192 reads.
  const bool cold = !c.prefill() && c.window == 0;
  AttentionSetting setting(pool, c, cold ? options.cold_bytes : 0);
  if (!setting.ok()) {
    std::fprintf(stderr, "%s: left out, no memory\n", c.Name().c_str());
    return true;
  }
  if (!setting.Run()) return false;
  const double error = setting.Error();
  if (!(error < setting.Tolerance())) {
    std::fprintf(stderr, "%s: differs from double precision by %g\n", c.Name().c_str(), error);
    return false;
  }
  const Measured m = Measure(pool, setting, c, options);
  std::printf("%-58s best %8.3f ms  median %8.3f  p99 %8.3f  %7.1f %s = %3.0f%% of %.1f\n",
              c.Name().c_str(), m.timing.best * 1e3, m.timing.median * 1e3, m.timing.p99 * 1e3,
              m.rate, c.prefill() ? "GFLOP/s" : "GB/s   ", 100.0 * m.rate / m.limit, m.limit);
  std::fflush(stdout);
  lines.push_back(Json(c, m));
  return true;
}

bool ParseOptions(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t equals = argument.find('=');
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const std::string name = argument.substr(0, equals);
    if (name == "--threads") {
      options.threads = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--rounds") {
      options.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--filter") {
      options.filter = value;
    } else if (name == "--clock" && value == "cpu") {
      options.clock = Clock::kProcessor;
    } else if (name == "--cold-megabytes") {
      options.cold_bytes = std::int64_t{1'000'000} * std::max(0, std::atoi(value.c_str()));
    } else if (name == "--json") {
      options.json = value;
    } else {
      std::fprintf(stderr, "unknown option %s\n", argument.c_str());
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, options)) return 2;
  ThreadPool pool(options.threads);
  std::printf("%s, %d threads\n", CpuTargetName().c_str(), options.threads);
  std::vector<std::string> lines;
  for (const AttentionCase& c : Cases()) {
    if (c.Name().find(options.filter) == std::string::npos) continue;
    if (!RunCase(pool, c, options, lines)) return 1;
  }
  if (options.json.empty()) return 0;
  std::ofstream out(options.json);
  out << "{\"target\": \"" << CpuTargetName() << "\", \"threads\": " << options.threads
      << ", \"cases\": [\n";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    out << "  " << lines[i] << (i + 1 < lines.size() ? ",\n" : "\n");
  }
  out << "]}\n";
  return out.good() ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
