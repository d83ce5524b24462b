// Measures recurrent layers in the shapes of three families: the cost of a pass for one layer, of
// drafts, and of accepting them. Drafts are measured in two ways: keeping their inputs and computing
// the accepted ones again (what the library does), and writing the state after every draft.
//
// Each case runs over the states of many layers, so that states come from memory as in a model. It
// first checks that replayed states have the bits of those that a plain pass writes.
//
// With --model, the rounds of a whole model are measured too: a plain pass of 8 tokens, a pass of a
// chain of 8 drafts, and their acceptance; and a transaction around a plain pass of 8 tokens, which
// commits some of them. The token after a commit must have the logits that it has without a
// transaction.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench_program.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/transaction.h"
#include "kvcache_engine/engine.h"
#include "model/graph/draft_replay.h"
#include "model/graph/recurrent_params.h"

namespace kvcache::bench {
namespace {

constexpr int kLayers = 24;
constexpr int kDepth = 8;
constexpr Position kCommits[] = {0, 1, 4, 7, kDepth};  // tokens that transactions keep

struct Shape {
  const char* name;
  RecurrentParams params;
  ScanRule rule;
};
const Shape kShapes[] = {
    {"qwen3next",
     {.taps = 4, .channels = 8192, .k_dim = 128, .v_dim = 128, .heads = 32, .groups = 16},
     ScanRule::kDelta},
    {"granitehybrid",
     {.taps = 4, .channels = 8448, .k_dim = 128, .v_dim = 64, .heads = 128, .groups = 1},
     ScanRule::kAdd},
    {"lfm2", {.taps = 3, .channels = 2048}, ScanRule::kAdd},
};

// How the tokens of a pass are divided and where their states go.
enum class Way {
  kPlain,       // one segment, one state
  kDrafts,      // one segment to scratch memory; inputs are kept
  kEveryState,  // a segment for each token, each with a state of its own
};

class Setting {
 public:
  Setting(Backend& backend, const Shape& shape)
      : backend_(backend),
        params_(shape.params),
        options_{.rule = shape.rule, .norm_epsilon = shape.rule == ScanRule::kDelta ? 1e-6f : 0.0f},
        replayer_(backend, params_, options_) {
    conv_values_ = std::int64_t{params_.taps - 1} * params_.channels;
    conv_.resize(Size(conv_values_ * kLayers * (kDepth + 1)));
    states_.resize(Size(params_.state_size() * kLayers * (kDepth + 1)));
    scratch_.resize(Size(std::max(conv_values_, params_.state_size())));
    inputs_.resize(Size(replayer_.inputs() * kDepth * kLayers));
    x_ = Random(std::int64_t{params_.channels} * kDepth);
    y_.resize(x_.size());
    taps_ = Random(std::int64_t{params_.taps} * params_.channels);
    const std::int64_t inner = params_.inner();
    qkv_ = Random((inner + 2 * params_.key_size()) * kDepth);
    decays_ = Random(std::int64_t{params_.heads} * kDepth);
    for (float& decay : decays_) decay = 0.9f + 0.1f * decay;
    steps_ = Random(std::int64_t{params_.heads} * kDepth);
    out_.resize(Size(inner * kDepth));
  }

  // Runs `tokens` tokens of one sequence through a layer.
  void Pass(int layer, std::int32_t tokens, Way way) {
    Require(backend_.ShortConv(
        X(), {TensorView::Dense(taps_.data(), DType::kF32, params_.taps, params_.channels)},
        Divide(conv_, conv_values_, layer, tokens, way),
        TensorView::Dense(y_.data(), DType::kF32, params_.channels, kDepth)));
    if (params_.k_dim > 0) {
      Require(backend_.StateScan(
          Scan(), options_, Divide(states_, params_.state_size(), layer, tokens, way),
          TensorView::Dense(out_.data(), DType::kF32, params_.v_dim, params_.heads, kDepth)));
    }
    if (way == Way::kDrafts) Keep(layer);
  }

  // Accepts the first `tokens` drafts of a layer.
  void Replay(int layer, std::int32_t tokens) {
    DraftReplay replay{.layer = layer, .inputs = Inputs(layer)};
    replay.conv = Divide(conv_, conv_values_, layer, tokens, Way::kPlain);
    const std::vector<StateSegment> conv = segments_;
    replay.conv.segments = conv;
    if (params_.k_dim > 0) {
      replay.recurrent = Divide(states_, params_.state_size(), layer, tokens, Way::kPlain);
    }
    Require(replayer_(replay));
  }

  // Compares the state after a replay with that of a plain pass.
  bool Agrees() {
    for (const std::int32_t tokens : {1, 5, kDepth}) {
      Pass(0, tokens, Way::kPlain);
      const std::vector<float> states = states_;
      const std::vector<float> conv = conv_;
      std::fill_n(conv_.begin() + conv_values_, conv_values_, 7.0f);
      std::fill_n(states_.begin() + params_.state_size(), params_.state_size(), 7.0f);
      Pass(0, kDepth, Way::kDrafts);
      Replay(0, tokens);
      if (states != states_ || conv != conv_) return false;
    }
    return true;
  }

 private:
  static std::size_t Size(std::int64_t values) { return static_cast<std::size_t>(values); }
  static void Require(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
  }
  static std::vector<float> Random(std::int64_t values) {
    std::vector<float> numbers(Size(values));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<float>(i * 2654435761u % 1000003) * 1e-6f;
    }
    return numbers;
  }
  TensorView X() { return TensorView::Dense(x_.data(), DType::kF32, params_.channels, kDepth); }
  TensorView Heads(std::int64_t offset, std::int64_t dim, std::int64_t heads) {
    const std::int64_t row = params_.inner() + 2 * params_.key_size();
    TensorView view = TensorView::Dense(qkv_.data() + offset, DType::kF32, dim, heads, kDepth);
    view.stride_bytes[2] = BytesOf(DType::kF32, row);
    return view;
  }
  ScanInputs Scan() {
    const std::int64_t keys = params_.key_size();
    return {.keys = Heads(0, params_.k_dim, params_.groups),
            .queries = Heads(keys, params_.k_dim, params_.groups),
            .values = Heads(2 * keys, params_.v_dim, params_.heads),
            .decays = TensorView::Dense(decays_.data(), DType::kF32, params_.heads, kDepth),
            .steps = TensorView::Dense(steps_.data(), DType::kF32, params_.heads, kDepth)};
  }
  TensorView Inputs(int layer) {
    return TensorView::Dense(inputs_.data() + replayer_.inputs() * kDepth * layer, DType::kF32,
                             replayer_.inputs(), kDepth);
  }
  void Keep(int layer) {
    const TensorView inputs = Inputs(layer);
    Require(KeepConvInputs(backend_, inputs, X()));
    if (params_.k_dim > 0) Require(KeepScanInputs(backend_, inputs, Scan()));
  }

  // A layer has the state before the pass, and one after each of kDepth tokens.
  StateSegments Divide(std::vector<float>& states, std::int64_t values, int layer,
                       std::int32_t tokens, Way way) {
    float* const before = states.data() + values * layer * (kDepth + 1);
    const auto add = [&](std::int32_t first, std::int32_t count, float* from, float* to) {
      segments_.push_back({first, count, reinterpret_cast<const std::byte*>(from),
                           reinterpret_cast<std::byte*>(to)});
    };
    segments_.clear();
    if (way == Way::kEveryState) {
      for (std::int32_t i = 0; i < tokens; ++i) {
        add(i, 1, before + values * i, before + values * (i + 1));
      }
    } else {
      add(0, tokens, before, way == Way::kDrafts ? scratch_.data() : before + values);
    }
    strands_ = {0, static_cast<std::int32_t>(segments_.size())};
    return {.segments = segments_, .strands = strands_, .values = values};
  }

  Backend& backend_;
  RecurrentParams params_;
  ScanOptions options_;
  DraftReplayer replayer_;
  std::int64_t conv_values_ = 0;
  std::vector<float> conv_, states_;  // [layers][1 + depth][values]
  std::vector<float> scratch_, inputs_, x_, y_, taps_, qkv_, decays_, steps_, out_;
  std::vector<StateSegment> segments_;
  std::vector<std::int32_t> strands_;
};

// Returns the best time of one layer over all rounds, in seconds.
template <class Call>
double Best(const ProgramOptions& options, const Call& call) {
  double best = 1e9;
  for (int round = 0; round < options.rounds; ++round) {
    const double start = Seconds(options.clock);
    for (int layer = 0; layer < kLayers; ++layer) call(layer);
    best = std::min(best, (Seconds(options.clock) - start) / kLayers);
  }
  return best;
}

bool RunShape(Backend& backend, const Shape& shape, const ProgramOptions& options,
              nlohmann::json& cases) {
  Setting setting(backend, shape);
  if (!setting.Agrees()) {
    std::fprintf(stderr, "%s: a replay writes other states than a pass\n", shape.name);
    return false;
  }
  const auto time = [&](const std::string& name, const auto& call) {
    const double seconds = Best(options, call);
    std::printf("%-14s %-34s %9.1f us per layer\n", shape.name, name.c_str(), seconds * 1e6);
    cases.push_back({{"shape", shape.name}, {"name", name}, {"us_per_layer", seconds * 1e6}});
  };
  time("token", [&](int layer) { setting.Pass(layer, 1, Way::kPlain); });
  time("8 tokens", [&](int layer) { setting.Pass(layer, kDepth, Way::kPlain); });
  time("8 drafts, inputs kept", [&](int layer) { setting.Pass(layer, kDepth, Way::kDrafts); });
  time("accept 4 of them", [&](int layer) { setting.Replay(layer, 4); });
  time("accept 8 of them", [&](int layer) { setting.Replay(layer, kDepth); });
  time("8 drafts, every state written",
       [&](int layer) { setting.Pass(layer, kDepth, Way::kEveryState); });
  return true;
}

// Passes of kDepth tokens of a whole model after a short history, which each pass is taken back to.
class ModelRounds {
 public:
  explicit ModelRounds(Engine& engine) : engine_(engine) {
    for (int i = 0; i <= kHistory; ++i) tokens_.push_back(i * 37 % 250 + 3);
    for (int i = 0; i <= kHistory; ++i) positions_.push_back(i);
    for (int i = 0; i < kDepth; ++i) chain_.push_back(i - 1);
    Forward(0, kHistory - kDepth, {});
  }

  void Plain() { Forward(kHistory - kDepth, kDepth, {}); }
  void Drafts() { Forward(kHistory - kDepth, kDepth, chain_); }
  void Accept(std::int32_t tokens) {
    const std::int32_t last[] = {tokens - 1};
    Require(engine_.cache().AcceptDrafts(last));
  }
  Transaction Begin() {
    auto transaction = Transaction::Begin({&engine_.cache()}, {{SequenceId{0}, kHistory - kDepth}},
                                          {.max_tokens = kDepth});
    Require(transaction.status());
    return std::move(*transaction);
  }
  void Commit(Transaction& transaction, Position tokens) { Require(transaction.Commit({tokens})); }

  // Returns the logits of the token after `tokens` tokens of the round.
  std::vector<float> LogitsAfter(std::int32_t tokens, bool in_transaction) {
    if (in_transaction) {
      Transaction transaction = Begin();
      Plain();
      Commit(transaction, tokens);
    } else {
      Forward(kHistory - kDepth, tokens, {});
    }
    Forward(kHistory - kDepth + tokens, 1, {});
    std::vector<float> logits(static_cast<std::size_t>(engine_.vocabulary_size()));
    const std::int32_t rows[] = {0};
    Require(engine_.Logits(rows, logits.data()));
    GoBack();
    return logits;
  }

  void GoBack() {
    const SequenceId sequence{0};
    const auto kept = engine_.cache().PrepareRestore(sequence, kHistory - kDepth);
    if (!kept.ok() || *kept != kHistory - kDepth) Require({StatusCode::kInternal, "no way back"});
    Require(engine_.cache().Remove(sequence, *kept, kEndOfSequence));
  }

 private:
  static constexpr int kHistory = 64;

  static void Require(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
  }
  void Forward(int first, int count, std::span<const std::int32_t> parents) {
    const auto at = static_cast<std::size_t>(first);
    const auto size = static_cast<std::size_t>(count);
    const std::vector<SequenceId> sequences(size, SequenceId{0});
    Require(engine_.Forward({.tokens = std::span(tokens_).subspan(at, size),
                             .positions = std::span(positions_).subspan(at, size),
                             .sequences = sequences,
                             .parents = parents}));
  }

  Engine& engine_;
  std::vector<std::int32_t> tokens_, chain_;
  std::vector<Position> positions_;
};

bool RunModel(const std::string& path, const ProgramOptions& options, nlohmann::json& cases) {
  auto engine = Engine::Open(path, {.threads = options.threads,
                                    .context = 128,
                                    .prefill_chunk = 64,
                                    .checkpoints = {.count = 4, .spacing = 8, .minimum = 0}});
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return false;
  }
  ModelRounds rounds(**engine);
  for (const Position tokens : kCommits) {
    if (tokens > 0 && rounds.LogitsAfter(tokens, true) != rounds.LogitsAfter(tokens, false)) {
      std::fprintf(stderr, "other logits after a commit of %d tokens\n", tokens);
      return false;
    }
  }
  double plain = 1e9, drafts = 1e9, four = 1e9, eight = 1e9;
  std::vector<double> begin_pass, commits[kDepth + 1], plain_passes;
  const auto time = [&](double& best, const auto& call) {
    const double start = Seconds(options.clock);
    call();
    best = std::min(best, Seconds(options.clock) - start);
  };
  for (int round = 0; round < options.rounds; ++round) {  // in turn, so that noise hits all
    const double start = Seconds(options.clock);
    rounds.Plain();
    plain_passes.push_back(Seconds(options.clock) - start);
    plain = std::min(plain, plain_passes.back());
    rounds.GoBack();
    for (const Position kept : kCommits) {
      const double begun = Seconds(options.clock);
      Transaction transaction = rounds.Begin();
      rounds.Plain();
      const double passed = Seconds(options.clock);
      rounds.Commit(transaction, kept);
      commits[kept].push_back(Seconds(options.clock) - passed);
      begin_pass.push_back(passed - begun);
      rounds.GoBack();
    }
    time(drafts, [&] { rounds.Drafts(); });
    time(four, [&] { rounds.Accept(4); });
    rounds.GoBack();
    time(drafts, [&] { rounds.Drafts(); });
    time(eight, [&] { rounds.Accept(kDepth); });
    rounds.GoBack();
  }
  std::printf("model: plain pass %.3f ms, drafts %.3f ms, accept 4 %.3f ms, accept 8 %.3f ms\n",
              plain * 1e3, drafts * 1e3, four * 1e3, eight * 1e3);
  std::printf("model: a round of 8 costs %+.1f%% if 4 are accepted, %+.1f%% if 8 are\n",
              100 * ((drafts + four) / plain - 1), 100 * ((drafts + eight) / plain - 1));
  const double base = Timing(plain_passes).median;
  const double pass = Timing(begin_pass).median;
  std::printf("model: medians: plain pass %.3f ms, begin and pass %.3f ms\n", base * 1e3,
              pass * 1e3);
  for (const Position kept : kCommits) {
    const Timing commit(commits[kept]);
    const double best = Timing(begin_pass).best + commit.best;
    std::printf(
        "model: commit(%d) %.3f ms; a transaction of 8 costs %+.1f%% (medians), %+.1f%% (best)\n",
        kept, commit.median * 1e3, 100 * ((pass + commit.median) / base - 1),
        100 * (best / plain - 1));
    cases.push_back({{"model", path},
                     {"name", "transaction of 8, commit " + std::to_string(kept)},
                     {"plain_ms", base * 1e3},
                     {"begin_and_pass_ms", pass * 1e3},
                     {"commit_ms", commit.median * 1e3}});
  }
  cases.push_back({{"model", path},
                   {"plain_ms", plain * 1e3},
                   {"drafts_ms", drafts * 1e3},
                   {"accept_4_ms", four * 1e3},
                   {"accept_8_ms", eight * 1e3}});
  return true;
}

int Main(int argc, char** argv) {
  CLI::App app("Measures recurrent layers, drafts and their acceptance.");
  ProgramOptions options;
  AddOptions(app, options);
  std::string model;
  app.add_option("--model", model, "also measure rounds of drafts in this model");
  CLI11_PARSE(app, argc, argv);
  auto backend = MakeCpuBackend({.threads = options.threads});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().message().c_str());
    return 1;
  }
  nlohmann::json cases = nlohmann::json::array();
  for (const Shape& shape : kShapes) {
    if (options.Wants(shape.name) && !RunShape(**backend, shape, options, cases)) return 1;
  }
  if (!model.empty() && !RunModel(model, options, cases)) return 1;
  return WriteResult(options.json, {.bench = "recurrence",
                                    .machine = MachineFacts(options.threads),
                                    .settings = options.Settings(),
                                    .cases = cases})
             ? 0
             : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
