// Prefill and decode of a whole model, token by token timed, beside the machine's limits.
//
//   model_bench                      the machine's limits alone
//   model_bench --model M.gguf …     and the model's times, as JSON on standard output
//
// Tokens come from a file, so that a peer can be given the same ones (bench/peer). The first
// logits are checked to be finite, and the choices after the prompt's last tokens are printed
// for comparison, before anything is timed. The history before a depth is really evaluated.

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/session.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"
#include "platform/thread_pool.h"

namespace kvcache::bench {
namespace {

constexpr std::int32_t kChecked = 16;  // of the prompt's last tokens

struct Options {
  std::string model, tokens_file, kv_type = "f16";
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int prompt = 512, repeats = 5, decode_tokens = 32;
  std::vector<int> depths = {0, 4096, 16384};
};

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// CPU time that this process has had, of all threads.
double CpuMilliseconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto ms = [](const timeval& time) {
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
  };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

class ModelBench {
 public:
  ModelBench(Engine& engine, const Options& options, std::vector<std::int32_t> tokens)
      : engine_(engine), options_(options), tokens_(std::move(tokens)), session_(engine, {}) {}

  Result<nlohmann::json> Run() {
    KVCACHE_RETURN_IF_ERROR(Check());
    KVCACHE_RETURN_IF_ERROR(MeasurePrefill());
    for (const int depth : options_.depths) {
      KVCACHE_RETURN_IF_ERROR(ReachDepth(depth));
      KVCACHE_RETURN_IF_ERROR(MeasureDecode(depth));
    }
    // Of the threads' time, what they got: well below 1 says that others ran too.
    result_["cpu_share"] = cpu_ms_ / (timed_ms_ * options_.threads);
    return result_;
  }

 private:
  // Times evaluating tokens [begin, end) after those held, to the last one's logits.
  Result<double> Append(int begin, int end) {
    const double cpu_start = CpuMilliseconds();
    const auto start = std::chrono::steady_clock::now();
    KVCACHE_RETURN_IF_ERROR(session_.Append(std::span(tokens_).subspan(
        static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))));
    KVCACHE_ASSIGN_OR_RETURN(const auto logits, session_.LastLogits());
    (void)logits;
    const double ms = MillisecondsSince(start);
    timed_ms_ += ms;
    cpu_ms_ += CpuMilliseconds() - cpu_start;
    return ms;
  }

  Status Check() {
    const auto vocabulary = static_cast<std::size_t>(engine_.info().vocabulary);
    std::vector<float> row(vocabulary);
    const auto choose = [&](Position first, std::int32_t count) {
      for (std::int32_t i = std::max(0, options_.prompt - kChecked - first); i < count; ++i) {
        KVCACHE_RETURN_IF_ERROR(engine_.Logits({&i, 1}, row.data()));
        if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) {
          return Status(StatusCode::kInternal, "logits that are not finite");
        }
        result_["greedy"].push_back(std::max_element(row.begin(), row.end()) - row.begin());
      }
      return Status::Ok();
    };
    KVCACHE_RETURN_IF_ERROR(session_.Append(
        std::span(tokens_).first(static_cast<std::size_t>(options_.prompt)), choose));
    return session_.Truncate(0);
  }

  Status MeasurePrefill() {
    for (int i = 0; i < options_.repeats; ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const double ms, Append(0, options_.prompt));
      result_["prefill_ms"].push_back(ms);
      KVCACHE_RETURN_IF_ERROR(session_.Truncate(0));
    }
    return Status::Ok();
  }

  Status ReachDepth(int depth) {
    double spent = 0.0;
    if (session_.position() < depth) {
      KVCACHE_ASSIGN_OR_RETURN(spent, Append(session_.position(), depth));
    }
    result_["history_ms"][std::to_string(depth)] = spent;
    return Status::Ok();
  }

  Status MeasureDecode(int depth) {
    nlohmann::json& times = result_["decode_ms"][std::to_string(depth)];
    for (int i = 0; i <= options_.decode_tokens; ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const double ms, Append(depth + i, depth + i + 1));
      if (i > 0) times.push_back(ms);  // the first one warms up
    }
    return session_.Truncate(depth);
  }

  Engine& engine_;
  const Options& options_;
  const std::vector<std::int32_t> tokens_;
  Session session_;
  nlohmann::json result_ = nlohmann::json::object();
  double timed_ms_ = 0.0, cpu_ms_ = 0.0;
};

// As many tokens as the file has to hold: white space or commas between them.
Result<std::vector<std::int32_t>> ReadTokens(const std::string& path, int needed) {
  std::ifstream file(path);
  std::vector<std::int32_t> tokens;
  std::int32_t token = 0;
  while (file >> token) {
    tokens.push_back(token);
    while (file.peek() == ',') file.get();
  }
  if (tokens.size() < static_cast<std::size_t>(needed)) {
    return Status(StatusCode::kInvalidArgument, path + " holds " + std::to_string(tokens.size()) +
                                                    " tokens, needed are " +
                                                    std::to_string(needed));
  }
  return tokens;
}

Result<DType> ParseKvType(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (InfoOf(type).name == name) return type;
  }
  return Status(StatusCode::kInvalidArgument, "--kv-type is f32, f16 or bf16, not " + name);
}

Result<nlohmann::json> BenchModel(const Options& options) {
  KVCACHE_ASSIGN_OR_RETURN(const DType kv_type, ParseKvType(options.kv_type));
  const int deepest = *std::max_element(options.depths.begin(), options.depths.end());
  const int context = std::max(deepest + options.decode_tokens + 1, options.prompt);
  KVCACHE_ASSIGN_OR_RETURN(auto tokens, ReadTokens(options.tokens_file, context));
  const auto start = std::chrono::steady_clock::now();
  KVCACHE_ASSIGN_OR_RETURN(auto engine, Engine::Open(options.model, {.threads = options.threads,
                                                                     .k_type = kv_type,
                                                                     .v_type = kv_type,
                                                                     .context = context}));
  const double load_ms = MillisecondsSince(start);
  KVCACHE_ASSIGN_OR_RETURN(auto result, ModelBench(*engine, options, std::move(tokens)).Run());
  result["load_ms"] = load_ms;
  result["owned_weight_bytes"] = engine->model().OwnedWeightBytes();
  result["kv_bytes"] = engine->cache().AllocatedBytes();
  return result;
}

// The best of several tries: on shared machines they differ.
nlohmann::json MeasureMachine(int threads) {
  constexpr int kTries = 5;
  ThreadPool pool(threads);
  const std::vector<std::byte> memory(std::size_t{1} << 30, std::byte{1});
  double read = 0.0, fma = 0.0, int8 = 0.0;
  for (int i = 0; i < kTries; ++i) {
    read = std::max(read, 1e-9 * static_cast<double>(memory.size()) /
                              SecondsToRead(pool, memory, Clock::kWall));
    fma = std::max(fma, FmaGflops(pool, Clock::kWall));
    int8 = std::max(int8, Int8DotGops(pool));
  }
  return {{"threads", threads},    {"target", CpuTargetName()}, {"compiler", __VERSION__},
          {"read_gb_per_s", read}, {"f32_gflop_per_s", fma},    {"int8_gop_per_s", int8}};
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Times a model's prefill and decode, and the machine's limits");
  app.add_option("--model", options.model, "a GGUF file; without it, the limits alone");
  app.add_option("--tokens-file", options.tokens_file, "token ids of the prompt and history");
  app.add_option("--kv-type", options.kv_type, "type of the cache")->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--prompt", options.prompt, "tokens of the prefill")->capture_default_str();
  app.add_option("--repeats", options.repeats, "timed prefills")->capture_default_str();
  app.add_option("--decode-tokens", options.decode_tokens, "per depth")->capture_default_str();
  app.add_option("--depths", options.depths, "ascending")->delimiter(',')->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  nlohmann::json output;
  output["machine"] = MeasureMachine(options.threads);
  if (!options.model.empty()) {
    auto result = BenchModel(options);
    if (!result.ok()) {
      std::cerr << "model_bench: " << result.status().message() << '\n';
      return 1;
    }
    output.update(result.value());
  }
  std::cout << output.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
