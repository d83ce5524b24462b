// Times the embedding of many short inputs.
//
//   embedding_bench --model M.gguf --inputs 1000 --tokens 24 --shared 0 --vectors V.f32
//   embedding_bench --model M.gguf --read-inputs F           one input a line: 1,52,7
//
// It reads or makes inputs of random tokens, of which the first --shared are the same in all, and embeds them --rounds
// times. The vectors of each round must have equal bits, and those of the first input be equal when it is alone.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "bench_program.h"
#include "kvcache_engine/embedder.h"
#include "machine_limits.h"

namespace kvcache::bench {
namespace {

using Inputs = std::vector<std::vector<std::int32_t>>;

constexpr int kFirstToken = 3;  // the ones before it are special

struct Options {
  ProgramOptions program;
  std::string model, read_inputs, vectors;
  int inputs = 1000;
  int tokens = 24;  // of an input, on average
  int shared = 0;
  int vocabulary = 259;
};

Inputs ReadInputs(const std::string& path) {
  std::ifstream file(path);
  Inputs inputs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream numbers(line);
    inputs.emplace_back();
    for (std::string number; std::getline(numbers, number, ',');) {
      inputs.back().push_back(std::stoi(number));
    }
  }
  if (inputs.empty()) Fail(path + " has no inputs");
  return inputs;
}

Inputs RandomInputs(const Options& options) {
  std::mt19937 random(1);
  const auto token = [&] {
    const auto kinds = static_cast<unsigned>(options.vocabulary - kFirstToken);
    return kFirstToken + static_cast<std::int32_t>(random() % kinds);
  };
  std::vector<std::int32_t> shared(static_cast<std::size_t>(options.shared));
  for (std::int32_t& each : shared) each = token();
  Inputs inputs(static_cast<std::size_t>(options.inputs), shared);
  for (auto& input : inputs) {
    const auto spread = static_cast<unsigned>(options.tokens);
    const std::size_t own = options.tokens / 2 + random() % spread;
    for (std::size_t i = 0; i < std::max<std::size_t>(own, 1); ++i) input.push_back(token());
  }
  return inputs;
}

void CheckAlone(Embedder& embedder, const Inputs& inputs, const Embeddings& whole) {
  const Embeddings alone = Require(embedder.Embed(std::span(inputs).first(1)));
  if (!std::ranges::equal(alone.values, whole.vector(0))) {
    Fail("the first input has another vector alone");
  }
}

int Run(const Options& options) {
  const auto embedder =
      Require(Embedder::Open(options.model, {.threads = options.program.threads}));
  const Inputs inputs =
      options.read_inputs.empty() ? RandomInputs(options) : ReadInputs(options.read_inputs);
  const Embeddings first = Require(embedder->Embed(inputs));  // the weights' first use
  CheckAlone(*embedder, inputs, first);
  std::vector<double> seconds;
  for (int round = 0; round < options.program.rounds; ++round) {
    const double start = Seconds(options.program.clock);
    const Embeddings again = Require(embedder->Embed(inputs));
    seconds.push_back(Seconds(options.program.clock) - start);
    if (again.values != first.values) Fail("a round has other vectors than the first one");
  }
  if (!options.vectors.empty()) {
    std::ofstream out(options.vectors, std::ios::binary);
    out.write(reinterpret_cast<const char*>(first.values.data()),
              static_cast<std::streamsize>(first.values.size() * sizeof(float)));
    if (!out.flush()) Fail("cannot write " + options.vectors);
  }
  const Timing timing(seconds);
  nlohmann::json result = timing.Json();
  result["name"] = "embed";
  result["inputs"] = inputs.size();
  result["tokens"] = first.tokens;
  result["reused_tokens"] = first.reused_tokens;
  result["tokens_per_second"] = static_cast<double>(first.tokens) / timing.median;
  std::printf(
      "%zu inputs, %lld tokens, %lld of them reused: %.3f s median, %.3f s best, %.0f tokens/s\n",
      inputs.size(), static_cast<long long>(first.tokens),
      static_cast<long long>(first.reused_tokens), timing.median, timing.best,
      result["tokens_per_second"].get<double>());
  const BenchResult all{.bench = "embedding",
                        .machine = MachineFacts(options.program.threads),
                        .settings = options.program.Settings(),
                        .cases = nlohmann::json::array({result})};
  return WriteResult(options.program.json, all) ? 0 : 1;
}

int Main(int argc, char** argv) {
  CLI::App app("Times the embedding of many short inputs.");
  Options options;
  options.program.rounds = 3;
  AddOptions(app, options.program);
  app.add_option("--model", options.model, "a GGUF file")->required();
  app.add_option("--read-inputs", options.read_inputs, "a file with the inputs' tokens");
  app.add_option("--vectors", options.vectors, "write the vectors here, in f32");
  app.add_option("--inputs", options.inputs, "number of random inputs")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "tokens of one, on average")
      ->check(CLI::PositiveNumber);
  app.add_option("--shared", options.shared, "tokens that all begin with, besides")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  return Run(options);
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
