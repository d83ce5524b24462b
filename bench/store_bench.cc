// Measures writing keys and values into cells, per cache type: the cost of a token for one layer,
// compared with a plain copy of the same f32 rows. Each case first checks that a batch writes the
// same bytes as its tokens one at a time.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/kv/kv_kernels.h"
#include "bench_program.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"

namespace kvcache::bench {
namespace {

constexpr int kKvHeads = 8;
constexpr int kCells = 1024;

struct Case {
  DType type;
  int head_dim;
  int tokens;

  std::string Name() const {
    return std::string(InfoOf(type).name) + " head " + std::to_string(head_dim) + " tokens " +
           std::to_string(tokens);
  }
};

// A layer and a batch for it.
class Setting {
 public:
  Setting(ThreadPool& pool, const Case& c) : pool_(pool), case_(c) {
    layer_ = {.shape = {kKvHeads, c.head_dim, c.head_dim},
              .k_type = c.type,
              .v_type = c.type,
              .layout = KvLayout::kTiled,
              .v_transposed = false,
              .cells = kCells};
    bytes_.resize(static_cast<std::size_t>(layer_.KBytes() + layer_.VBytes()));
    layer_.k = bytes_.data();
    layer_.v = bytes_.data() + layer_.KBytes();
    rows_.resize(2 * Values());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i] = static_cast<float>(i * 2654435761u % 1000003) * 3e-6f - 1.5f;
    }
    copy_.resize(rows_.size());
  }

  bool Store() { return StoreTokens(0, case_.tokens); }
  void Copy() { std::memcpy(copy_.data(), rows_.data(), rows_.size() * sizeof(float)); }

  bool Agrees() {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0});
    for (int i = case_.tokens - 1; i >= 0; --i) {
      if (!StoreTokens(i, 1)) return false;
    }
    const std::vector<std::byte> one_by_one = bytes_;
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0});
    return Store() && bytes_ == one_by_one;
  }

 private:
  std::size_t Values() const {
    return static_cast<std::size_t>(case_.tokens) * kKvHeads *
           static_cast<std::size_t>(case_.head_dim);
  }
  bool StoreTokens(int first, int count) {
    const auto view = [&](float* rows) {
      return TensorView::Dense(rows + std::int64_t{first} * kKvHeads * case_.head_dim, DType::kF32,
                               case_.head_dim, kKvHeads, count);
    };
    const CellRun cells[] = {{5 + first, count}};
    const Status status = cpu::StoreKv(pool_, workspace_, layer_, view(rows_.data()),
                                       view(rows_.data() + Values()), cells);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    return status.ok();
  }

  ThreadPool& pool_;
  cpu::Workspace workspace_;
  Case case_;
  LayerKv layer_;
  std::vector<std::byte> bytes_;
  std::vector<float> rows_;
  std::vector<float> copy_;
};

// Returns the best time of one call, in seconds.
template <class Call>
double Best(const ProgramOptions& options, const Call& call) {
  constexpr double kRoundSeconds = 0.02;
  double best = 1e9;
  for (int round = 0; round < options.rounds; ++round) {
    int calls = 0;
    const double start = Seconds(options.clock);
    double now = start;
    for (; now - start < kRoundSeconds; now = Seconds(options.clock)) {
      for (int i = 0; i < 16; ++i, ++calls) call();
    }
    best = std::min(best, (now - start) / calls);
  }
  return best;
}

bool RunCase(ThreadPool& pool, const Case& c, const ProgramOptions& options,
             nlohmann::json& cases) {
  Setting setting(pool, c);
  if (!setting.Agrees()) {
    std::fprintf(stderr, "%s: a batch writes other bytes than its tokens one at a time\n",
                 c.Name().c_str());
    return false;
  }
  const double copy = Best(options, [&] { setting.Copy(); });
  const double store = Best(options, [&] { static_cast<void>(setting.Store()); });
  const double values = 2.0 * c.tokens * kKvHeads * c.head_dim;
  std::printf("%-28s %9.1f us  %6.3f ns per value  %5.2f times a copy\n", c.Name().c_str(),
              store * 1e6, store * 1e9 / values, store / copy);
  std::fflush(stdout);
  // The rate is the read bytes of f32 rows per time. The limit is that of copying them.
  const double gigabytes = values * sizeof(float) * 1e-9;
  cases.push_back({{"name", c.Name()},
                   {"kind", "store"},
                   {"type", InfoOf(c.type).name},
                   {"head_dim", c.head_dim},
                   {"tokens", c.tokens},
                   {"best_ms", store * 1e3},
                   {"rate", gigabytes / store},
                   {"unit", "GB/s"},
                   {"rate_of", "best"},
                   {"limit", gigabytes / copy},
                   {"share", copy / store}});
  return true;
}

int Main(int argc, char** argv) {
  ProgramOptions options;
  options.threads = 1;
  CLI::App app("Compares writing keys and values to cells with copying the same rows");
  AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  ThreadPool pool(options.threads);
  std::printf("%s, %d threads, K and V of %d heads\n", CpuTargetName().c_str(), options.threads,
              kKvHeads);
  nlohmann::json cases = nlohmann::json::array();
  for (const int head_dim : {64, 128}) {
    for (const int tokens : {1, 512}) {
      for (const DType type :
           {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
        const Case c{type, head_dim, tokens};
        if (!options.Wants(c.Name())) continue;
        if (!RunCase(pool, c, options, cases)) return 1;
      }
    }
  }
  const bool written = WriteResult(
      options.json, {"store", MachineFacts(options.threads), options.Settings(), std::move(cases)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
