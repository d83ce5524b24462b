// Times prefill and decode of a whole model, each token of decode by itself, and measures the
// machine's limits.
//
//   model_bench                      prints the machine's limits as JSON
//   model_bench --model M.gguf …     also prints the model's times
//
// Tokens come from a file, so that a peer can get the same ones (bench/peer). Before anything is
// timed, the program checks that the first logits are finite, and prints the greedy choices after
// the prompt's last tokens for comparison. A history is evaluated up to --evaluate tokens; longer
// histories repeat the cells of those. The output has the numbers of both. The bandwidth is
// measured before and after each depth, because it may change meanwhile.
//
// With --rounds, each measurement is repeated: the lists of times are those of the rounds, one after the
// other. With --in-turn, the program prints the line "turn" before each of them and waits for a line, so
// that a peer's measurements can be between them. Prefill after a history belongs to the first round.

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/cpu_target.h"
#include "bench_program.h"
#include "decode_together.h"
#include "engine/engine_impl.h"
#include "growing_sequence.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"
#include "platform/aligned_buffer.h"
#include "platform/processors.h"
#include "platform/thread_pool.h"

namespace kvcache::bench {
namespace {

constexpr std::int32_t kChecked = 16;  // the prompt's last tokens, whose choices are printed

struct Options {
  std::string model, tokens_file, k_type = "f16", v_type = "f16";
  int threads = FindProcessorLimits().DefaultThreads();
  int prompt = 512, repeats = 5, decode_tokens = 32, rounds = 1;
  bool in_turn = false;
  int evaluate = std::numeric_limits<int>::max();
  std::vector<int> depths = {0, 4096, 16384}, prefill_depths = {0};
  std::vector<int> sequences;
  int sequence_history = 256;
  Clock clock = Clock::kWall;

  int Deepest() const {
    const int decode = depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end());
    const int prefill = prefill_depths.empty()
                            ? 0
                            : *std::max_element(prefill_depths.begin(), prefill_depths.end());
    return std::max(decode + decode_tokens + 1, prefill + prompt);
  }
};

// Waits for this program's turn to measure.
void TakeTurn(const Options& options) {
  if (!options.in_turn) return;
  std::cout << "turn" << std::endl;
  std::string line;
  std::getline(std::cin, line);
}

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Returns the CPU time of all threads of this process so far.
double CpuMilliseconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto ms = [](const timeval& time) {
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
  };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

// In GB/s.
struct Bandwidth {
  double best = 0.0;   // the better of the two loops that read
  double plain = 0.0;  // the loop that reads without prefetching
};

Bandwidth Better(const Bandwidth& a, const Bandwidth& b) {
  return {std::max(a.best, b.best), std::max(a.plain, b.plain)};
}

// Measures the machine's read bandwidth over 1 GiB, the best of several tries, because they differ
// on shared machines. Makes a pool for each measurement, because the threads of an idle pool would
// spin beside an engine's.
class ReadLimit {
 public:
  explicit ReadLimit(int threads)
      : threads_(threads), memory_(AlignedBuffer::Make(std::size_t{1} << 30).value()) {
    std::memset(memory_.data(), 1, memory_.size_bytes());
  }

  Bandwidth Measure() const {
    constexpr int kTries = 5;
    ThreadPool pool(threads_);
    Bandwidth found;
    for (int i = 0; i < kTries; ++i) {
      const double plain = Read(pool, Reading::kPlain);
      const double ahead = Read(pool, Reading::kFetchingAhead);
      found = Better(found, {std::max(plain, ahead), plain});
    }
    return found;
  }

 private:
  double Read(ThreadPool& pool, Reading reading) const {
    return 1e-9 * static_cast<double>(memory_.size_bytes()) /
           SecondsToRead(pool, {memory_.data(), memory_.size_bytes()}, Clock::kWall, reading);
  }

  int threads_;
  AlignedBuffer memory_;  // in large pages if the system has them, like weights and histories
};

class ModelBench {
 public:
  ModelBench(Engine& engine, Backend& backend, const Options& options, const ReadLimit& limit,
             std::vector<std::int32_t> tokens)
      : engine_(engine),
        options_(options),
        limit_(limit),
        tokens_(std::move(tokens)),
        logits_(static_cast<std::size_t>(engine.info().vocabulary)),
        sequence_(engine, backend) {}

  Result<nlohmann::json> Run() {
    KVCACHE_RETURN_IF_ERROR(Check());
    std::set<int> depths(options_.depths.begin(), options_.depths.end());
    depths.insert(options_.prefill_depths.begin(), options_.prefill_depths.end());
    for (const int depth : depths) {
      KVCACHE_RETURN_IF_ERROR(ReachDepth(depth));
      const Bandwidth before = limit_.Measure();
      for (int round = 0; round < options_.rounds; ++round) {
        KVCACHE_RETURN_IF_ERROR(MeasureRound(depth, round));
      }
      const Bandwidth read = Better(before, limit_.Measure());
      result_["read_gb_per_s"][std::to_string(depth)] = read.best;
      result_["plain_read_gb_per_s"][std::to_string(depth)] = read.plain;
    }
    // The share of time in which the threads ran is well below 1 if other programs ran too.
    result_["cpu_share"] = cpu_ms_ / (timed_ms_ * options_.threads);
    return result_;
  }

 private:
  static bool IsIn(const std::vector<int>& depths, int depth) {
    return std::find(depths.begin(), depths.end(), depth) != depths.end();
  }

  // Times evaluating `count` tokens after those held, including the last one's logits. The file's
  // tokens repeat if there are too few.
  Result<double> Append(int count) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = tokens_[(static_cast<std::size_t>(sequence_.length()) + i) % tokens_.size()];
    }
    const double cpu_start = CpuMilliseconds();
    const auto start = std::chrono::steady_clock::now();
    KVCACHE_RETURN_IF_ERROR(sequence_.Append(tokens));
    KVCACHE_RETURN_IF_ERROR(sequence_.LastLogits(logits_));
    const double ms = MillisecondsSince(start);
    const double cpu_ms = CpuMilliseconds() - cpu_start;
    timed_ms_ += ms;
    cpu_ms_ += cpu_ms;
    return options_.clock == Clock::kWall ? ms : cpu_ms;
  }

  Status Check() {
    const auto choose = [&](Position first, std::int32_t count) {
      for (std::int32_t i = std::max(0, options_.prompt - kChecked - first); i < count; ++i) {
        KVCACHE_RETURN_IF_ERROR(engine_.Logits({&i, 1}, logits_.data()));
        if (!std::all_of(logits_.begin(), logits_.end(),
                         [](float x) { return std::isfinite(x); })) {
          return Status(StatusCode::kInternal, "some logits are not finite");
        }
        result_["greedy"].push_back(std::max_element(logits_.begin(), logits_.end()) -
                                    logits_.begin());
      }
      return Status::Ok();
    };
    KVCACHE_RETURN_IF_ERROR(sequence_.Append(
        std::span(tokens_).first(static_cast<std::size_t>(options_.prompt)), choose));
    return sequence_.Truncate(0);
  }

  Status MeasureRound(int depth, int round) {
    if (IsIn(options_.depths, depth)) {
      TakeTurn(options_);
      KVCACHE_RETURN_IF_ERROR(MeasureDecode(depth));
    }
    if (IsIn(options_.prefill_depths, depth) && (depth == 0 || round == 0)) {
      TakeTurn(options_);
      KVCACHE_RETURN_IF_ERROR(MeasurePrefill(depth));
    }
    return Status::Ok();
  }

  Status MeasurePrefill(int depth) {
    for (int i = 0; i < options_.repeats; ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const double ms, Append(options_.prompt));
      result_["prefill_ms"][std::to_string(depth)].push_back(ms);
      KVCACHE_RETURN_IF_ERROR(sequence_.Truncate(depth));
    }
    return Status::Ok();
  }

  Status ReachDepth(int depth) {
    const auto start = std::chrono::steady_clock::now();
    const int evaluated = std::min(depth, options_.evaluate);
    if (sequence_.length() < evaluated) {
      KVCACHE_RETURN_IF_ERROR(Append(evaluated - sequence_.length()).status());
    }
    KVCACHE_RETURN_IF_ERROR(sequence_.Repeat(depth));
    result_["history"][std::to_string(depth)] = {{"evaluated", evaluated},
                                                 {"repeated", depth - evaluated},
                                                 {"ms", MillisecondsSince(start)}};
    return Status::Ok();
  }

  Status MeasureDecode(int depth) {
    nlohmann::json& times = result_["decode_ms"][std::to_string(depth)];
    for (int i = 0; i <= options_.decode_tokens; ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const double ms, Append(1));
      if (i > 0) times.push_back(ms);  // the first token is a warm-up
    }
    return sequence_.Truncate(depth);
  }

  Engine& engine_;
  const Options& options_;
  const ReadLimit& limit_;
  const std::vector<std::int32_t> tokens_;
  std::vector<float> logits_;
  GrowingSequence sequence_;
  nlohmann::json result_ = nlohmann::json::object();
  double timed_ms_ = 0.0, cpu_ms_ = 0.0;
};

// Reads the tokens of the file, separated by white space or commas. Fails if there are fewer than
// `needed`.
Result<std::vector<std::int32_t>> ReadTokens(const std::string& path, int needed) {
  std::ifstream file(path);
  std::vector<std::int32_t> tokens;
  std::int32_t token = 0;
  while (file >> token) {
    tokens.push_back(token);
    while (file.peek() == ',') file.get();
  }
  if (tokens.size() < static_cast<std::size_t>(needed)) {
    return Status(StatusCode::kInvalidArgument, path + " has " + std::to_string(tokens.size()) +
                                                    " tokens; must have at least " +
                                                    std::to_string(needed));
  }
  return tokens;
}

Result<DType> ParseKvType(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    if (InfoOf(type).name == name) return type;
  }
  return Status(StatusCode::kInvalidArgument,
                "cache type is '" + name + "'; must be f32, f16, bf16, q8_0 or q4_0");
}

// Decodes several sequences together, each number of them with an engine of its own.
Result<nlohmann::json> BenchSequences(const Options& options, DType k_type, DType v_type,
                                      std::span<const std::int32_t> tokens) {
  nlohmann::json result = nlohmann::json::object();
  for (const int sequences : options.sequences) {
    const TogetherOptions together{.sequences = sequences,
                                   .history = options.sequence_history,
                                   .passes = options.decode_tokens,
                                   .rounds = options.rounds,
                                   .before_round = [&options] { TakeTurn(options); },
                                   .clock = options.clock};
    KVCACHE_ASSIGN_OR_RETURN(
        auto engine,
        Engine::Open(options.model,
                     {.threads = options.threads,
                      .k_type = k_type,
                      .v_type = v_type,
                      .context = together.history + together.rounds * (together.passes + 1),
                      .max_sequences = sequences}));
    KVCACHE_ASSIGN_OR_RETURN(result[std::to_string(sequences)],
                             DecodeTogether(*engine, tokens, together));
  }
  return result;
}

Result<nlohmann::json> BenchModel(const Options& options, const ReadLimit& limit) {
  KVCACHE_ASSIGN_OR_RETURN(const DType k_type, ParseKvType(options.k_type));
  KVCACHE_ASSIGN_OR_RETURN(const DType v_type, ParseKvType(options.v_type));
  const int context = std::max(options.Deepest(), options.prompt);
  KVCACHE_ASSIGN_OR_RETURN(auto tokens, ReadTokens(options.tokens_file, options.prompt));
  const auto start = std::chrono::steady_clock::now();
  KVCACHE_ASSIGN_OR_RETURN(auto owned, MakeCpuBackend({.threads = options.threads}));
  Backend& backend = *owned;
  KVCACHE_ASSIGN_OR_RETURN(
      auto engine,
      Engine::Open(
          options.model,
          {.threads = options.threads, .k_type = k_type, .v_type = v_type, .context = context},
          std::move(owned)));
  const double load_ms = MillisecondsSince(start);
  KVCACHE_ASSIGN_OR_RETURN(auto result, ModelBench(*engine, backend, options, limit, tokens).Run());
  result["load_ms"] = load_ms;
  result["k_type"] = options.k_type;
  result["v_type"] = options.v_type;
  result["owned_weight_bytes"] = engine->model().OwnedWeightBytes();
  result["kv_bytes"] = engine->cache().memory()->AllocatedBytes();
  engine.reset();
  result["sequence_history"] = options.sequence_history;
  result["rounds"] = options.rounds;
  KVCACHE_ASSIGN_OR_RETURN(result["sequences_ms"], BenchSequences(options, k_type, v_type, tokens));
  return result;
}

nlohmann::json MeasureMachine(int threads, const ReadLimit& limit) {
  constexpr int kTries = 5;
  const Bandwidth read = limit.Measure();
  ThreadPool pool(threads);
  double fma = 0.0, int8 = 0.0, small = 0.0, tiles = 0.0, tiles_from_cache = 0.0;
  for (int i = 0; i < kTries; ++i) {
    fma = std::max(fma, FmaGflops(pool, Clock::kWall));
    int8 = std::max(int8, Int8DotGops(pool));
    small = std::max(small, Int8DotGops(pool, IntegerProducts::kSmall));
    tiles = std::max(tiles, Int8TileGops(pool, TileFactors::kInRegisters));
    tiles_from_cache = std::max(tiles_from_cache, Int8TileGops(pool, TileFactors::kFromCache));
  }
  nlohmann::json machine = MachineFacts(threads);
  machine.update({{"read_gb_per_s", read.best},
                  {"plain_read_gb_per_s", read.plain},
                  {"f32_gflop_per_s", fma},
                  {"int8_gop_per_s", int8},
                  {"small_int_gop_per_s", small},
                  {"tile_gop_per_s", tiles},
                  {"tile_from_cache_gop_per_s", tiles_from_cache}});
  return machine;
}

Result<nlohmann::json> Measure(const Options& options) {
  KVCACHE_RETURN_IF_ERROR(cpu::UseCpuTargetFromEnvironment());  // also for the limits
  const ReadLimit limit(options.threads);
  nlohmann::json output = {{"machine", MeasureMachine(options.threads, limit)}};
  if (!options.model.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(const auto result, BenchModel(options, limit));
    output.update(result);
  }
  return output;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Times a model's prefill and decode, and the machine's limits");
  app.add_option("--model", options.model, "a GGUF file; without it, only the limits are measured");
  app.add_option("--tokens-file", options.tokens_file, "token ids of the prompt and history");
  app.add_option("--k-type", options.k_type, "type of the cache's keys")->capture_default_str();
  app.add_option("--v-type", options.v_type, "type of the cache's values")->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--prompt", options.prompt, "number of tokens of a prefill")
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "number of timed prefills")->capture_default_str();
  app.add_option("--rounds", options.rounds, "number of times that each measurement is made")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--in-turn", options.in_turn,
               "print the line 'turn' before each measurement and wait for a line");
  app.add_option("--decode-tokens", options.decode_tokens,
                 "number of timed tokens per depth and round")
      ->capture_default_str();
  app.add_option("--depths", options.depths, "tokens of history before the timed tokens of decode")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--prefill-depths", options.prefill_depths, "tokens of history before a prefill")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--clock", options.clock,
                 "wall, or cpu: processor time, for one thread on a busy machine")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Clock>{{"wall", Clock::kWall}, {"cpu", Clock::kProcessor}}));
  app.add_option("--sequences", options.sequences, "numbers of sequences that are decoded together")
      ->delimiter(',');
  app.add_option("--sequence-history", options.sequence_history,
                 "tokens of history of each of several sequences")
      ->capture_default_str();
  app.add_option("--evaluate", options.evaluate,
                 "tokens of history that are evaluated; longer histories repeat them")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  const auto result = Measure(options);
  if (!result.ok()) {
    std::cerr << "model_bench: " << result.status().message() << '\n';
    return 1;
  }
  std::cout << result.value().dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
