// Compares linear layers with the machine's limits: for few tokens with the bandwidth of a loop
// that only sums as many bytes, for many tokens with the rate of the instructions that the weights'
// type allows (int8 dot products or fused multiply-adds). Each case first checks its result against
// double precision, then measures limit and kernel alternately.
//
// A case multiplies several matrices in turn, enough to exceed the processor's caches.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench_program.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"
#include "platform/aligned_buffer.h"
#include "tensor/quantize.h"

namespace kvcache::bench {
namespace {

struct Options : ProgramOptions {
  int decode_megabytes = 768;  // more than the last-level cache
};

struct Case {
  DType type;
  std::int64_t inputs;
  std::int64_t outputs;
  std::int64_t tokens;

  bool StreamsWeights() const { return tokens <= 16; }
  std::int64_t WeightBytes() const { return BytesOf(type, inputs * outputs); }
  double Operations() const { return 2.0 * static_cast<double>(inputs * outputs * tokens); }
  std::string Name() const {
    return std::string(InfoOf(type).name) + " " + std::to_string(inputs) + "x" +
           std::to_string(outputs) + " tokens " + std::to_string(tokens);
  }
};

bool IsBlockType(DType type) {
  return InfoOf(type).block_size > 1;
}

// Returns the shapes of a model of a billion parameters: projections, a feed-forward layer, the
// output.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType type :
       {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
        DType::kQ5_1, DType::kMXFP4, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS,
        DType::kQ8_0, DType::kF16, DType::kBF16, DType::kF32}) {
    for (const auto& [inputs, outputs] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {2048, 2048}, {2048, 512}, {2048, 8192}, {8192, 2048}, {2048, 128 << 10}}) {
      const bool vocabulary = outputs > 8192;
      if (vocabulary && !IsBlockType(type) && type != DType::kF16) continue;
      for (const std::int64_t tokens : {1, 4, 8, 16, 64, 512}) {
        if (vocabulary && tokens > 1) continue;
        cases.push_back({type, inputs, outputs, tokens});
      }
    }
  }
  return cases;
}

std::uint32_t Hash(std::uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15ull;
  return static_cast<std::uint32_t>((i ^ i >> 29) * 0xbf58476d1ce4e5b9ull >> 32);
}

// Returns a value in (-1, 1) that is exact in the float types.
float Noise(std::uint64_t i) {
  return static_cast<float>(static_cast<int>(Hash(i) % 255) - 127) / 128.0f;
}

// A matrix of one case. Rows repeat every kPeriod, so that large matrices are made quickly.
class Matrix {
 public:
  static constexpr std::int64_t kPeriod = 61;

  explicit Matrix(const Case& c)
      : case_(c), memory_(AlignedBuffer::Make(static_cast<std::size_t>(c.WeightBytes())).value()) {
    const std::int64_t row_bytes = BytesOf(c.type, c.inputs);
    values_.resize(static_cast<std::size_t>(kPeriod * c.inputs));
    for (std::int64_t row = 0; row < c.outputs; ++row) {
      std::byte* const bytes = memory_.data() + row * row_bytes;
      if (row < kPeriod) {
        FillRow(row, {bytes, static_cast<std::size_t>(row_bytes)});
      } else {
        std::memcpy(bytes, bytes - kPeriod * row_bytes, static_cast<std::size_t>(row_bytes));
      }
    }
  }

  TensorView View() const {
    return TensorView::Dense(memory_.data(), case_.type, case_.inputs, case_.outputs);
  }
  // Returns value k of a row, exactly as stored.
  float At(std::int64_t row, std::int64_t k) const {
    return values_[static_cast<std::size_t>(row % kPeriod * case_.inputs + k)];
  }

 private:
  void FillRow(std::int64_t row, std::span<std::byte> bytes) {
    const auto inputs = static_cast<std::size_t>(case_.inputs);
    const auto first = static_cast<std::size_t>(row) * inputs;
    const std::span<float> values = std::span(values_).subspan(first, inputs);
    for (std::size_t k = 0; k < inputs; ++k) values[k] = Noise(first + k);
    if (!Quantize(case_.type, values, bytes).ok() || !Dequantize(case_.type, bytes, values).ok()) {
      std::abort();  // unreachable: every case's type holds these values
    }
  }

  Case case_;
  AlignedBuffer memory_;
  std::vector<float> values_;
};

// The operands of a case: its matrices, one input, one output.
class Setting {
 public:
  Setting(Backend& backend, const Case& c, std::int64_t total_bytes)
      : backend_(backend), case_(c), matrix_(c) {
    const std::int64_t copies = std::clamp<std::int64_t>(total_bytes / c.WeightBytes(), 1, 400);
    // Float weights are read in place, so their bytes must stay. Block types are repacked.
    for (std::int64_t i = 0; i < copies; ++i) {
      if (!IsBlockType(c.type)) copies_.push_back(std::make_unique<Matrix>(c));
      const Matrix& source = copies_.empty() ? matrix_ : *copies_.back();
      weights_.push_back(backend.MakeLinear(source.View()).value());
    }
    x_.resize(static_cast<std::size_t>(c.inputs * c.tokens));
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = Noise(i + 777'777);
    y_.resize(static_cast<std::size_t>(c.outputs * c.tokens));
  }

  std::size_t copies() const { return weights_.size(); }
  std::size_t bytes() const { return copies() * static_cast<std::size_t>(case_.WeightBytes()); }

  bool Run() {
    for (const auto& weight : weights_) {
      const LinearOutput output{
          weight.get(), TensorView::Dense(y_.data(), DType::kF32, case_.outputs, case_.tokens)};
      const Status status = backend_.Linear(
          TensorView::Dense(x_.data(), DType::kF32, case_.inputs, case_.tokens), {&output, 1});
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().c_str());
        return false;
      }
    }
    return true;
  }

  // Returns the largest difference from double precision over some results, as a share of the sum
  // of the products' magnitudes.
  double Error() const {
    double worst = 0.0;
    for (std::uint64_t i = 0; i < 200; ++i) {
      const std::int64_t n = Hash(2 * i) % case_.outputs;
      const std::int64_t t = Hash(2 * i + 1) % case_.tokens;
      double sum = 0.0;
      double size = 0.0;
      for (std::int64_t k = 0; k < case_.inputs; ++k) {
        const double product =
            static_cast<double>(matrix_.At(n, k)) *
            static_cast<double>(x_[static_cast<std::size_t>(t * case_.inputs + k)]);
        sum += product;
        size += std::fabs(product);
      }
      const double y = static_cast<double>(y_[static_cast<std::size_t>(t * case_.outputs + n)]);
      worst = std::max(worst, std::fabs(y - sum) / size);
    }
    return worst;
  }

 private:
  Backend& backend_;
  Case case_;
  Matrix matrix_;
  std::vector<std::unique_ptr<Matrix>> copies_;
  std::vector<std::unique_ptr<LinearWeight>> weights_;
  std::vector<float> x_;
  std::vector<float> y_;
};

struct Measured {
  Timing timing;
  double rate;   // GB/s or GOP/s, from the best time
  double limit;  // in the same unit, from the best time
};

double Limit(ThreadPool& pool, const Case& c, const AlignedBuffer& memory, Clock clock) {
  if (!c.StreamsWeights()) {
    const double tiles =
        IsBlockType(c.type) ? Int8TileGops(pool, TileFactors::kInRegisters, clock) : 0.0;
    if (tiles > 0.0) return tiles;
    const IntegerProducts products =
        c.type == DType::kQ8_0 ? IntegerProducts::kBytes : IntegerProducts::kSmall;
    const double dots = IsBlockType(c.type) ? Int8DotGops(pool, products, clock) : 0.0;
    return dots > 0.0 ? dots : FmaGflops(pool, clock);
  }
  const double seconds = SecondsToRead(pool, {memory.data(), memory.size_bytes()}, clock);
  return static_cast<double>(memory.size_bytes()) / seconds * 1e-9;
}

Measured Measure(ThreadPool& pool, Setting& setting, const Case& c, const Options& options) {
  AlignedBuffer memory;
  if (c.StreamsWeights()) {
    memory = AlignedBuffer::Make(setting.bytes()).value();
    std::memset(memory.data(), 1, memory.size_bytes());
  }
  double limit = 0.0;
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    limit = std::max(limit, Limit(pool, c, memory, options.clock));
    const double start = Seconds(options.clock);
    setting.Run();
    seconds.push_back((Seconds(options.clock) - start) / static_cast<double>(setting.copies()));
  }
  const Timing timing(std::move(seconds));
  const double work = c.StreamsWeights() ? static_cast<double>(c.WeightBytes()) : c.Operations();
  return {timing, work / timing.best * 1e-9, limit};
}

nlohmann::json Json(const Case& c, const Measured& m) {
  nlohmann::json json = m.timing.Json();
  json.update({{"name", c.Name()},
               {"kind", "linear"},
               {"type", InfoOf(c.type).name},
               {"inputs", c.inputs},
               {"outputs", c.outputs},
               {"tokens", c.tokens},
               {"rate", m.rate},
               {"unit", c.StreamsWeights() ? "GB/s" : "GOP/s"},
               {"rate_of", "best"},
               {"limit", m.limit},
               {"share", m.rate / m.limit}});
  return json;
}

bool RunCase(Backend& backend, ThreadPool& pool, const Case& c, const Options& options,
             nlohmann::json& results) {
  // Inputs of 8 bits have an error of at most half of 1/127 of a block's largest value. Chains in
  // f32 have an error of less than 2^-24 per step.
  const double tolerance = IsBlockType(c.type) ? 4e-3 : 6e-8 * static_cast<double>(c.inputs) / 16.0;
  const std::int64_t total =
      c.StreamsWeights() ? std::int64_t{options.decode_megabytes} << 20 : c.WeightBytes();
  Setting setting(backend, c, total);
  if (!setting.Run()) return false;
  if (const double error = setting.Error(); !(error < tolerance)) {
    std::fprintf(stderr, "%s: differs from double precision by %g, bound %g\n", c.Name().c_str(),
                 error, tolerance);
    return false;
  }
  const Measured m = Measure(pool, setting, c, options);
  std::printf("%-28s best %9.3f ms  median %9.3f  p99 %9.3f  %7.1f %s = %3.0f%% of %.1f\n",
              c.Name().c_str(), m.timing.best * 1e3, m.timing.median * 1e3, m.timing.p99 * 1e3,
              m.rate, c.StreamsWeights() ? "GB/s " : "GOP/s", 100.0 * m.rate / m.limit, m.limit);
  std::fflush(stdout);
  results.push_back(Json(c, m));
  return true;
}

int Run(const Options& options) {
  auto backend = MakeCpuBackend({.threads = options.threads});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().message().c_str());
    return 1;
  }
  ThreadPool pool(options.threads);
  std::printf("%s, %d threads\n", CpuTargetName().c_str(), options.threads);
  nlohmann::json results = nlohmann::json::array();
  for (const Case& c : Cases()) {
    if (!options.Wants(c.Name())) continue;
    if (!RunCase(**backend, pool, c, options, results)) return 1;
  }
  const bool written = WriteResult(options.json, {"linear", MachineFacts(options.threads),
                                                  options.Settings(), std::move(results)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  kvcache::bench::Options options;
  options.rounds = 7;
  CLI::App app("Compares linear layers with the machine's limits");
  kvcache::bench::AddOptions(app, options);
  app.add_option("--decode-megabytes", options.decode_megabytes,
                 "megabytes of weights that a case of few tokens reads")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return kvcache::bench::Run(options);
}
