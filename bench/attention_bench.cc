// Attention against the machine's limits: decoding against the bandwidth of loops that only
// sum the same bytes, prefill against the rate of fused multiply-adds. Each case first checks
// its result against double precision, then measures limit and kernel in turn.
//
//   attention_bench [--threads=N] [--rounds=N] [--filter=TEXT] [--json=FILE] [--clock=cpu]
//
// --clock=cpu counts the process's own processor time instead of the wall's, for one thread on
// a machine that others use too.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/attention.h"
#include "backend/cpu/kv_kernels.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"
#include "platform/aligned_buffer.h"
#include "tensor/float_conversion.h"

namespace kvcache::bench {
namespace {

constexpr int kHeads = 32;
constexpr int kKvHeads = 8;

struct Options {
  int threads = AvailableProcessors();
  int rounds = 15;
  std::string filter;
  std::string json;
  Clock clock = Clock::kWall;
};

// `queries` tokens at the end of each of `batch` sequences of `history` tokens.
struct Case {
  const char* kind;  // "decode" or "prefill"
  int history;
  int queries;
  int batch;
  int head_dim;
  DType type;

  std::string Name() const {
    return std::string(kind) + " history " + std::to_string(history) + " queries " +
           std::to_string(queries) + " batch " + std::to_string(batch) + " head " +
           std::to_string(head_dim) + " " + std::string(InfoOf(type).name);
  }
  // Multiplications and additions of both products over what causality lets a query see.
  double Gflop() const {
    const double seen = history - (queries - 1) / 2.0;
    return 4e-9 * batch * queries * kHeads * head_dim * seen;
  }
};

float Noise(std::uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15ull;
  i ^= i >> 29;
  i *= 0xbf58476d1ce4e5b9ull;
  return static_cast<float>(static_cast<double>(i >> 11) * 0x1p-52 - 1.0);
}

float RoundTo(DType type, float x) {
  if (type == DType::kF16) return F16ToF32(F32ToF16(x));
  return type == DType::kBF16 ? Bf16ToF32(F32ToBf16(x)) : x;
}

// One layer, its queries and their results. Calls the backend's functions themselves: kernel
// and limit must run on the same threads, where the scheduler has put them. The values repeat every
// kPeriod positions.
class Setting {
 public:
  static constexpr int kPeriod = 64;

  Setting(ThreadPool& pool, const Case& c) : pool_(pool), case_(c) {
    const std::int64_t cells = std::int64_t{c.batch} * c.history;
    layer_ = {.shape = {kKvHeads, c.head_dim, c.head_dim},
              .k_type = c.type,
              .v_type = c.type,
              .layout = KvLayout::kTiled,
              .v_transposed = false,
              .cells = (cells + kCellTile - 1) / kCellTile * kCellTile};
    const auto bytes = static_cast<std::size_t>(layer_.KBytes() + layer_.VBytes());
    memory_ = AlignedBuffer::Make(bytes).value();
    layer_.k = memory_.data();
    layer_.v = memory_.data() + layer_.KBytes();
    Fill();
  }

  std::span<const std::byte> Memory() const { return {memory_.data(), memory_.size_bytes()}; }

  bool Run() {
    const std::int64_t tokens = static_cast<std::int64_t>(positions_.size());
    const Visibility visibility{.positions = positions_,
                                .histories_index = index_,
                                .histories = histories_,
                                .bidirectional = {}};
    const Status status =
        cpu::Attention(pool_, scratch_, plan_, layer_,
                       TensorView::Dense(q_.data(), DType::kF32, case_.head_dim, kHeads, tokens),
                       visibility, {.scale = Scale(), .soft_cap = 0.0f, .sinks = {}},
                       TensorView::Dense(out_.data(), DType::kF32, case_.head_dim, kHeads, tokens));
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    return status.ok();
  }

  // The largest difference from double precision over some rows.
  double Error() const {
    double worst = 0.0;
    const std::size_t rows = positions_.size() * kHeads;
    for (std::size_t row = 0; row < rows; row += std::max<std::size_t>(1, rows / 7)) {
      worst = std::max(worst, RowError(row));
    }
    return worst;
  }

 private:
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(case_.head_dim)); }
  std::uint64_t IndexOf(std::int64_t p, int head, int d) const {
    return static_cast<std::uint64_t>((p % kPeriod * kKvHeads + head) * case_.head_dim + d);
  }
  float Key(std::int64_t p, int head, int d) const { return Noise(2 * IndexOf(p, head, d)); }
  float Value(std::int64_t p, int head, int d) const { return Noise(2 * IndexOf(p, head, d) + 1); }

  void Fill() {
    std::vector<float> k;
    std::vector<float> v;
    for (int p = 0; p < kPeriod; ++p) {
      for (int h = 0; h < kKvHeads; ++h) {
        for (int d = 0; d < case_.head_dim; ++d) {
          k.push_back(Key(p, h, d));
          v.push_back(Value(p, h, d));
        }
      }
    }
    runs_.resize(static_cast<std::size_t>(case_.batch));
    for (int s = 0; s < case_.batch; ++s) {
      for (int p = 0; p < case_.history; p += kPeriod) StorePeriod(s * case_.history + p, p, k, v);
      auto& run = runs_[static_cast<std::size_t>(s)];
      run = {0, s * case_.history, case_.history};
      histories_.emplace_back(&run, 1);
      for (int i = 0; i < case_.queries; ++i) {
        positions_.push_back(case_.history - case_.queries + i);
        index_.push_back(s);
      }
    }
    q_.resize(positions_.size() * static_cast<std::size_t>(kHeads * case_.head_dim));
    for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = 3.0f * Noise(i + 12345);
    out_.resize(q_.size());
  }

  void StorePeriod(int cell, int p, std::vector<float>& k, std::vector<float>& v) {
    const int count = std::min(kPeriod, case_.history - p);
    const CellRun cells[] = {{cell, count}};
    const auto view = [&](std::vector<float>& x) {
      return TensorView::Dense(x.data(), DType::kF32, case_.head_dim, kKvHeads, count);
    };
    if (!cpu::StoreKv(pool_, scratch_, layer_, view(k), view(v), cells).ok()) std::abort();
  }

  double RowError(std::size_t row) const {
    const std::size_t token = row / kHeads;
    const int kv_head = static_cast<int>(row % kHeads) / (kHeads / kKvHeads);
    const float* const q = q_.data() + row * static_cast<std::size_t>(case_.head_dim);
    const int seen = positions_[token] + 1;
    std::vector<double> weights(kPeriod, 0.0);
    double total = 0.0;
    for (int p = 0; p < std::min(seen, kPeriod); ++p) {
      double s = 0.0;
      for (int d = 0; d < case_.head_dim; ++d) {
        s += static_cast<double>(q[d]) * RoundTo(case_.type, Key(p, kv_head, d));
      }
      const int copies = (seen - p + kPeriod - 1) / kPeriod;
      weights[static_cast<std::size_t>(p)] = copies * std::exp(s * static_cast<double>(Scale()));
      total += weights[static_cast<std::size_t>(p)];
    }
    double worst = 0.0;
    for (int d = 0; d < case_.head_dim; ++d) {
      double sum = 0.0;
      for (int p = 0; p < kPeriod; ++p) {
        sum += weights[static_cast<std::size_t>(p)] / total *
               RoundTo(case_.type, Value(p, kv_head, d));
      }
      const std::size_t i =
          row * static_cast<std::size_t>(case_.head_dim) + static_cast<std::size_t>(d);
      worst = std::max(worst, std::fabs(sum - static_cast<double>(out_[i])));
    }
    return worst;
  }

  ThreadPool& pool_;
  cpu::Scratch scratch_;
  cpu::AttentionPlan plan_;
  Case case_;
  LayerKv layer_;
  AlignedBuffer memory_;
  std::vector<HistoryRun> runs_;
  std::vector<std::span<const HistoryRun>> histories_;
  std::vector<Position> positions_;
  std::vector<std::int32_t> index_;
  std::vector<float> q_;
  std::vector<float> out_;
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
  double rate;   // GB/s or GFLOP/s, at best
  double limit;  // in the same unit, at best
};

// What the machine reaches at best in `duration`, once at least: GB/s of the faster of two
// reading loops over the same memory for decoding, else GFLOP/s.
double Limit(ThreadPool& pool, const Setting& setting, bool decode, double duration, Clock clock) {
  const double gigabytes = static_cast<double>(setting.Memory().size()) * 1e-9;
  const double start = Seconds(clock);
  double best = 0.0;
  do {
    if (decode) {
      for (const Reading reading : {Reading::kPlain, Reading::kFetchingAhead}) {
        best = std::max(best, gigabytes / SecondsToRead(pool, setting.Memory(), clock, reading));
      }
    } else {
      best = std::max(best, FmaGflops(pool, clock));
    }
  } while (Seconds(clock) - start < duration);
  return best;
}

// The first look at the limit is long, so that the pool's threads find processors of their own.
Measured Measure(ThreadPool& pool, Setting& setting, const Case& c, const Options& options) {
  constexpr double kFirstSeconds = 0.3;
  constexpr double kRoundSeconds = 0.02;
  const Clock clock = options.clock;
  const bool decode = std::string(c.kind) == "decode";
  std::vector<double> seconds;
  double limit = Limit(pool, setting, decode, kFirstSeconds, clock);
  for (int round = 0; round < options.rounds; ++round) {
    limit = std::max(limit, Limit(pool, setting, decode, kRoundSeconds, clock));
    const double start = Seconds(clock);
    do {
      const double begin = Seconds(clock);
      setting.Run();
      seconds.push_back(Seconds(clock) - begin);
    } while (Seconds(clock) - start < kRoundSeconds);
  }
  const Timing timing = Summary(seconds);
  const double gigabytes = static_cast<double>(setting.Memory().size()) * 1e-9;
  return {timing, (decode ? gigabytes : c.Gflop()) / timing.best, limit};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int head_dim : {64, 128}) {
    for (const DType type : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (const int history : {1024, 4096, 16384, 32768}) {
        cases.push_back({"decode", history, 1, 1, head_dim, type});
      }
      cases.push_back({"decode", 1024, 1, 16, head_dim, type});
      cases.push_back({"decode", 4096, 1, 16, head_dim, type});
      cases.push_back({"decode", 16384, 5, 1, head_dim, type});
      cases.push_back({"prefill", 512, 512, 1, head_dim, type});
      cases.push_back({"prefill", 4608, 512, 1, head_dim, type});
    }
  }
  return cases;
}

std::string Json(const Case& c, const Measured& m) {
  char line[512];
  std::snprintf(line, sizeof line,
                "{\"kind\": \"%s\", \"history\": %d, \"queries\": %d, \"batch\": %d, "
                "\"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"type\": \"%s\", "
                "\"best_ms\": %.4f, \"median_ms\": %.4f, \"p99_ms\": %.4f, \"rate\": %.2f, "
                "\"limit\": %.2f, \"share\": %.3f}",
                c.kind, c.history, c.queries, c.batch, kHeads, kKvHeads, c.head_dim,
                std::string(InfoOf(c.type).name).c_str(), m.timing.best * 1e3,
                m.timing.median * 1e3, m.timing.p99 * 1e3, m.rate, m.limit, m.rate / m.limit);
  return line;
}

bool RunCase(ThreadPool& pool, const Case& c, const Options& options,
             std::vector<std::string>& lines) {
  constexpr double kTolerance = 2e-5;  // values are below 1, weights add up to 1
  Setting setting(pool, c);
  if (!setting.Run()) return false;
  const double error = setting.Error();
  if (!(error < kTolerance)) {
    std::fprintf(stderr, "%s: differs from double precision by %g\n", c.Name().c_str(), error);
    return false;
  }
  const Measured m = Measure(pool, setting, c, options);
  const bool decode = std::string(c.kind) == "decode";
  std::printf("%-56s best %8.3f ms  median %8.3f  p99 %8.3f  %7.1f %s = %3.0f%% of %.1f\n",
              c.Name().c_str(), m.timing.best * 1e3, m.timing.median * 1e3, m.timing.p99 * 1e3,
              m.rate, decode ? "GB/s   " : "GFLOP/s", 100.0 * m.rate / m.limit, m.limit);
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
  for (const Case& c : Cases()) {
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
