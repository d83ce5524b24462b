// Measures what LoRA adapters cost: prefill and decode of a model with adapters, against the same without, in turns.
//
//   adapter_bench --model M.gguf --rank 16
//
// The adapters have random values, for each matrix of the model's layers. `requests` decodes that many texts in one pass:
// `one each` gives each an adapter of its own. Before anything is timed, the program checks that the logits of a text with an
// adapter are the same in company.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench_program.h"
#include "engine/engine_impl.h"
#include "kvcache_engine/session.h"
#include "support/random_adapter.h"

namespace kvcache::bench {
namespace {

using Tokens = std::vector<std::int32_t>;
using Steady = std::chrono::steady_clock;

struct Options {
  std::string model;
  int threads = FindProcessorLimits().DefaultThreads();
  int rank = 16, prompt = 512, decode = 32, requests = 4, rounds = 5;
};

Tokens SomeTokens(int count, int vocabulary) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + i * 37 % (vocabulary - 3));
  return tokens;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    const auto base = Require(GgufFile::Open(options.model));
    std::vector<EngineAdapter> adapters;
    for (int i = 0; i < options.requests; ++i) {
      adapters.push_back(testing::MakeAdapter(
          *base, {.rank = options.rank,
                  .seed = static_cast<std::uint32_t>(i + 1),
                  .largest = 0.01f,
                  .type = GgmlType::kF16,
                  .has = [](std::string_view tensor) { return tensor.starts_with("blk."); }}));
    }
    const int context = options.prompt + options.decode + 8;
    engine_ = Require(Engine::Open(options.model, {.threads = options.threads,
                                                   .context = context,
                                                   .max_sequences = options.requests,
                                                   .adapters = std::move(adapters)}));
    prompt_ = SomeTokens(options.prompt, engine_->vocabulary_size());
  }

  void Run() {
    const std::vector<AdapterUse> none, one{{0, 1.0f}};
    Require(CheckCompany());
    struct Row {
      const char* name;
      std::vector<double> without, with;
    };
    Row prefill{"prefill", {}, {}}, decode{"decode, one request", {}, {}};
    Row together{"decode, one adapter for all", {}, {}}, each{"decode, one each", {}, {}};
    for (int round = 0; round < options_.rounds; ++round) {
      Measure(none, prefill.without, decode.without);
      Measure(one, prefill.with, decode.with);
      const double plain = Decode([](int) { return std::vector<AdapterUse>(); });
      together.without.push_back(plain);
      each.without.push_back(plain);
      together.with.push_back(Decode([](int) { return std::vector<AdapterUse>{{0, 1.0f}}; }));
      each.with.push_back(Decode([](int i) { return std::vector<AdapterUse>{{i, 1.0f}}; }));
    }
    std::printf("%-30s %14s %14s %8s\n", "tokens/s", "without", "with", "ratio");
    for (Row* row : {&prefill, &decode, &together, &each}) {
      const double without = Median(row->without), with = Median(row->with);
      std::printf("%-30s %14.1f %14.1f %8.3f\n", row->name, without, with, with / without);
    }
  }

 private:
  static double Median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
  }
  static double SecondsSince(Steady::time_point start) {
    return std::chrono::duration<double>(Steady::now() - start).count();
  }

  // Adds tokens per second of a prompt, and of the tokens after it.
  void Measure(AdapterUses uses, std::vector<double>& prefill, std::vector<double>& decode) {
    Session session(*engine_, SequenceId{0});
    Require(session.UseAdapters(uses));
    auto start = Steady::now();
    Require(session.Append(prompt_));
    Require(session.LastLogits().status());
    prefill.push_back(options_.prompt / SecondsSince(start));
    start = Steady::now();
    for (int i = 0; i < options_.decode; ++i) {
      Require(session.Append(std::span(prompt_).subspan(static_cast<std::size_t>(i), 1)));
      Require(session.LastLogits().status());
    }
    decode.push_back(options_.decode / SecondsSince(start));
  }

  // Returns tokens per second of all requests in one pass, each with the adapters that `uses_of` returns.
  template <typename UsesOf>
  double Decode(const UsesOf& uses_of) {
    const int count = options_.requests;
    std::vector<SequenceId> sequences;
    for (int i = 0; i < count; ++i) sequences.push_back(SequenceId{i});
    for (int i = 0; i < count; ++i) {
      Require(engine_->SetAdapters(SequenceId{i}, uses_of(i)));
    }
    std::vector<float> logits(static_cast<std::size_t>(count) *
                              static_cast<std::size_t>(engine_->vocabulary_size()));
    std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    const auto start = Steady::now();
    for (int at = 0; at < options_.decode; ++at) {
      const Tokens tokens(static_cast<std::size_t>(count), prompt_[static_cast<std::size_t>(at)]);
      const std::vector<Position> positions(static_cast<std::size_t>(count), at);
      Require(engine_->Forward({.tokens = tokens, .positions = positions, .sequences = sequences}));
      Require(engine_->Logits(rows, logits.data()));
    }
    const double rate = count * options_.decode / SecondsSince(start);
    for (int i = 0; i < count; ++i) {
      Require(engine_->cache().Remove(SequenceId{i}, 0, kEndOfSequence));
      Require(engine_->SetAdapters(SequenceId{i}, {}));
    }
    return rate;
  }

  Status CheckCompany() {
    const std::vector<AdapterUse> one{{0, 1.0f}};
    std::vector<float> alone;
    {
      Session session(*engine_, SequenceId{0});
      KVCACHE_RETURN_IF_ERROR(session.UseAdapters(one));
      KVCACHE_RETURN_IF_ERROR(session.Append(std::span(prompt_).first(1)));
      KVCACHE_ASSIGN_OR_RETURN(const auto logits, session.LastLogits());
      alone.assign(logits.begin(), logits.end());
    }
    std::vector<SequenceId> sequences;
    for (int i = 0; i < options_.requests; ++i) {
      sequences.push_back(SequenceId{i});
      KVCACHE_RETURN_IF_ERROR(
          engine_->SetAdapters(SequenceId{i}, std::vector<AdapterUse>{{i, 1.0f}}));
    }
    const Tokens tokens(sequences.size(), prompt_[0]);
    const std::vector<Position> positions(sequences.size(), 0);
    KVCACHE_RETURN_IF_ERROR(
        engine_->Forward({.tokens = tokens, .positions = positions, .sequences = sequences}));
    std::vector<float> row(alone.size());
    const std::int32_t first[] = {0};
    KVCACHE_RETURN_IF_ERROR(engine_->Logits(first, row.data()));
    for (const SequenceId sequence : sequences) {
      KVCACHE_RETURN_IF_ERROR(engine_->cache().Remove(sequence, 0, kEndOfSequence));
      KVCACHE_RETURN_IF_ERROR(engine_->SetAdapters(sequence, {}));
    }
    if (row != alone) Fail("a request's logits differ in company");
    return Status::Ok();
  }

  const Options options_;
  std::unique_ptr<Engine> engine_;
  Tokens prompt_;
};

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  kvcache::bench::Options options;
  CLI::App app("The cost of LoRA adapters");
  app.add_option("--model", options.model)->required();
  app.add_option("--threads", options.threads);
  app.add_option("--rank", options.rank);
  app.add_option("--prompt", options.prompt);
  app.add_option("--decode", options.decode);
  app.add_option("--requests", options.requests)->check(CLI::Range(1, 16));
  app.add_option("--rounds", options.rounds);
  CLI11_PARSE(app, argc, argv);
  kvcache::bench::Bench(options).Run();
  return 0;
}
