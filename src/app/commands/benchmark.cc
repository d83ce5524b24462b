// kvcache bench reuse: what a trace of requests reuses, beside what simple caches would reuse.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/commands/reuse_report.h"
#include "app/flags/adapter_flags.h"
#include "app/flags/flag_checks.h"
#include "app/flags/model_store.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/token_keys.h"
#include "replay/block_baselines.h"
#include "replay/sample_trace.h"

namespace kvcache::app {
namespace {

constexpr int kPassWithoutModel = 2048;  // tokens of a pass that computes nothing
constexpr int kPassOfModel = 512;
constexpr std::uint32_t kQuickSeed = 1;
constexpr int kQuickRequests = 500;
constexpr int kQuickBlock = 32;  // tokens; a model answers the whole trace within a minute
constexpr const char* kNoModel = "none";

struct BenchFlags {
  std::string name;
  std::string trace;
  int block_size = 512;
  std::string model = kNoModel;
  std::optional<std::uint64_t> budget_tokens;
  std::optional<std::uint64_t> budget_bytes;
  int slots = 1;
  bool exact_states = false;
  bool quick = false;
  bool json = false;
  AdapterFlags adapters;
};

Status CheckFlags(const BenchFlags& flags) {
  if (flags.name.empty())
    return InvalidArgument("NAME is required: kvcache bench reuse --trace FILE");
  if (flags.name != "reuse") {
    return InvalidArgument(
        StrCat("there is no benchmark ", Quoted(flags.name),
               " in this program; it has reuse, and ./dev bench has the others"));
  }
  if (flags.trace.empty() && !flags.quick) {
    return InvalidArgument("--trace FILE is required, or --quick for a trace that needs no file");
  }
  if (flags.budget_tokens == std::uint64_t{0}) {
    return InvalidArgument("--budget-tokens is 0; must be at least 1");
  }
  if (flags.budget_bytes && flags.model == kNoModel) {
    return InvalidArgument(
        "--budget needs a model, because tokens have no bytes without one; give --model "
        "MODEL, or --budget-tokens instead");
  }
  if (!flags.adapters.given().empty() && flags.model == kNoModel) {
    return InvalidArgument("--adapter needs a model; give --model MODEL too");
  }
  if (flags.exact_states && flags.model != kNoModel) {
    return InvalidArgument(
        "--exact-states needs --model none; a model's layers say what its states can");
  }
  return Status::Ok();
}

// Returns the tokens with which no prefix has to go and no request waits.
std::int64_t AmpleTokens(const Trace& trace, std::int64_t held_tokens, int slots) {
  std::int64_t largest = 0;
  for (const TraceRequest& request : trace.requests) {
    largest = std::max(largest, std::int64_t{request.input} + request.output);
  }
  return held_tokens + slots * largest;
}

Status CheckModel(const Engine& engine, const std::string& model) {
  if (!engine.has_encoder()) return Status::Ok();
  return Unsupported(
      StrCat(model, " has an encoder, whose texts share no prefixes; --model none replays a ",
             "trace without a model"));
}

class ReuseBench {
 public:
  explicit ReuseBench(const BenchFlags& flags) : flags_(flags) {}

  Status Run() {
    KVCACHE_ASSIGN_OR_RETURN(trace_, GetTrace());
    const UnlimitedReuse unlimited = ReusedByUnlimited(trace_);
    ample_ = AmpleTokens(trace_, unlimited.held_tokens, flags_.slots);
    if (ample_ > std::numeric_limits<int>::max()) {
      return Unsupported(StrCat(
          flags_.trace, ": the trace has ", WithThousands(ample_), " different tokens; at most ",
          WithThousands(std::numeric_limits<int>::max()), " can be replayed; cut the file"));
    }
    summary_.slots = flags_.slots;
    summary_.baselines.unlimited = unlimited.reused_tokens;
    KVCACHE_RETURN_IF_ERROR(Replay());
    progress_.Clear();
    summary_.baselines.last_prompts = ReusedByLastPrompts(trace_, flags_.slots);
    if (summary_.bounded) {
      const std::int64_t budget = summary_.budget_tokens;
      summary_.baselines.least_recently_used = ReusedByLeastRecentlyUsed(trace_, budget);
      summary_.baselines.optimum = ReusedByOptimum(trace_, budget);
    }
    if (flags_.json) {
      PrintJson(ReuseJson(trace_, summary_));
    } else {
      (void)std::fputs(ReuseText(trace_, summary_).c_str(), stdout);
    }
    return Status::Ok();
  }

 private:
  Result<Trace> GetTrace() const {
    if (flags_.quick) return MakeSampleTrace(kQuickSeed, kQuickRequests, kQuickBlock);
    return ReadTrace(flags_.trace, flags_.block_size);
  }

  Status Replay() {
    ReplayOptions options{.slots = flags_.slots, .interrupt = &CatchInterrupt()};
    options.progress = [this](std::size_t requests) {
      if (requests % 16 != 0) return;
      progress_.Show(StrCat("request ", WithThousands(static_cast<std::int64_t>(requests)), " of ",
                            WithThousands(std::ssize(trace_.requests))));
    };
    return flags_.model == kNoModel ? ReplayNone(std::move(options)) : ReplayModel(options);
  }

  // More cells than the trace has tokens would only take memory.
  void SetBudget(std::optional<std::uint64_t> tokens, ReplayOptions& options) {
    summary_.bounded = tokens.has_value();
    const auto ample = static_cast<std::uint64_t>(ample_);
    options.budget_tokens = static_cast<std::int64_t>(std::min(tokens.value_or(ample), ample));
    constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
    summary_.budget_tokens = static_cast<std::int64_t>(std::min(tokens.value_or(ample), kMax));
  }

  Status ReplayNone(ReplayOptions options) {
    SetBudget(flags_.budget_tokens, options);
    options.max_batch = kPassWithoutModel;
    options.divisible = !flags_.exact_states;
    return Timed([&] { return ReplayWithoutModel(trace_, options); });
  }

  Status ReplayModel(ReplayOptions& options) {
    KVCACHE_ASSIGN_OR_RETURN(const FoundModel found, LocateModel(flags_.model));
    const std::string& path = found.path;
    AdapterFlags adapters = flags_.adapters;
    if (found.stored) adapters.SetDefault(found.stored->adapters);
    KVCACHE_ASSIGN_OR_RETURN(auto opened, LoadAdapters(adapters.given(), path));
    std::optional<std::uint64_t> tokens = flags_.budget_tokens;
    if (flags_.budget_bytes) {
      KVCACHE_ASSIGN_OR_RETURN(const auto small, Engine::Open(path, {.context = 1}));
      const EngineOptions& types = small->options();
      const std::int64_t each = BytesPerToken(small->info().memory, types.k_type, types.v_type);
      tokens = *flags_.budget_bytes / static_cast<std::uint64_t>(std::max<std::int64_t>(1, each));
      if (*tokens == 0) {
        return InvalidArgument(StrCat("--budget is ", *flags_.budget_bytes, " bytes; a token of ",
                                      path, " takes ", each));
      }
    }
    SetBudget(tokens, options);
    const std::int64_t context = (options.budget_tokens + flags_.slots - 1) / flags_.slots;
    KVCACHE_ASSIGN_OR_RETURN(
        const auto engine,
        Engine::Open(path, {.context = static_cast<int>(context),
                            .max_sequences = flags_.slots,
                            .pool_tokens = static_cast<int>(context) * flags_.slots,
                            .prefill_chunk = kPassOfModel,
                            .adapters = std::move(opened)}));
    KVCACHE_RETURN_IF_ERROR(CheckModel(*engine, path));
    for (int i = 0; i < flags_.slots; ++i) {
      KVCACHE_RETURN_IF_ERROR(engine->SetAdapters(SequenceId{i}, adapters.Uses()));
    }
    options.max_batch = engine->max_batch();
    options.vocabulary = engine->vocabulary_size();
    const EngineOptions& types = engine->options();
    options.divisible = IsDivisible(engine->info().memory);
    options.state_tokens = StateTokens(engine->info().memory, types.k_type, types.v_type);
    summary_.has_model = true;
    const ReplayPass pass = [&](std::span<const std::int32_t> batch_tokens, const Batch& batch) {
      return engine->Forward({.tokens = batch_tokens,
                              .positions = batch.positions,
                              .sequences = batch.sequences,
                              .interrupt = options.interrupt});
    };
    return Timed([&] { return ReplayTrace(trace_, engine->cache(), pass, options); });
  }

  template <class Run>
  Status Timed(Run&& run) {
    const auto start = std::chrono::steady_clock::now();
    KVCACHE_ASSIGN_OR_RETURN(summary_.replay, run());
    const auto taken = std::chrono::steady_clock::now() - start;
    summary_.seconds = std::chrono::duration<double>(taken).count();
    return Status::Ok();
  }

  const BenchFlags& flags_;
  Trace trace_;
  std::int64_t ample_ = 0;
  ReuseSummary summary_;
  Progress progress_;
};

}  // namespace

Command AddBench(CommandLine& line) {
  FlagSet command =
      line.AddCommand("bench", "Replay a trace of requests and say what the cache reuses");
  command.SetFooter("kvcache bench reuse --quick\nkvcache bench reuse --trace FILE");
  const auto flags = std::make_shared<BenchFlags>();
  command.AddText("NAME", &flags->name, "the benchmark: reuse");
  const Flag trace =
      command
          .AddText("--trace", &flags->trace,
                   "requests in the format of Mooncake's traces: JSON lines, plain or compressed "
                   "with xz")
          .ValueName("FILE");
  const Flag block =
      command.AddNumber("--block-size", &flags->block_size, "tokens of the prompt for each id")
          .Range(1, 1 << 20)
          .ValueName("N")
          .ShowDefault();
  command
      .AddSwitch("--quick", &flags->quick,
                 "replay 500 requests of 12 conversations that take turns, without a file")
      .Excludes(trace)
      .Excludes(block);
  command
      .AddText(
          "--model", &flags->model,
          "the model that computes the tokens: a .gguf file, a name that 'kvcache list' shows, "
          "or none, which replays without computing")
      .ValueName("MODEL")
      .ShowDefault();
  flags->adapters.Add(command);
  const Flag tokens = command
                          .AddNumber("--budget-tokens", &flags->budget_tokens,
                                     "the most tokens that are held (default: no limit)")
                          .ValueName("N");
  command
      .AddNumber("--budget", &flags->budget_bytes,
                 "the same in bytes of keys and values of the model")
      .ValueName("BYTES")
      .Excludes(tokens);
  command.AddNumber("--slots", &flags->slots, "the most requests that are live at once")
      .Range(1, 4096)
      .ValueName("N")
      .ShowDefault();
  command.AddSwitch("--exact-states", &flags->exact_states,
                    "without a model: states restore at their own length only, as in models with "
                    "windows or recurrent layers");
  command.AddSwitch("--json", &flags->json, "print one JSON object");
  command.RefuseEmptyValues({});
  command.CheckParsed([flags] { return CheckFlags(*flags); });
  return {"bench", [flags] { return ReuseBench(*flags).Run(); }};
}

}  // namespace kvcache::app
