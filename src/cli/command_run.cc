// kvcache run: generate text.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/json_report.h"
#include "cli/terminal.h"
#include "engine/generate.h"

namespace kvcache::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct RunFlags {
  EngineFlags engine;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::int32_t max_tokens = -1;
  SamplingParams sampling;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool json = false;
};

// CLI11 takes "-1" and numbers beyond 64 bits for others.
std::string SeedError(const std::string& text) {
  std::uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);
  if (error == std::errc() && stop == end) return {};
  return "'" + text + "' is not a whole number from 0 to 2^64 - 1";
}

void AddSamplingFlags(CLI::App& command, RunFlags& flags) {
  const std::string group = "Sampling";
  SamplingParams& s = flags.sampling;
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    command.add_option(name, value, help)->group(group)->type_name(type)->capture_default_str();
  };
  add("--temp", s.temperature, "T", "temperature; 0 takes the most likely token");
  add("--top-k", s.top_k, "K", "draw from the K most likely; 0: all");
  add("--top-p", s.top_p, "P", "draw from the most likely that sum to P");
  add("--min-p", s.min_p, "P", "leave out what is less than P times as likely as the best");
  add("--repeat-penalty", s.repeat_penalty, "R", "divide the logits of recent tokens by R");
  add("--presence-penalty", s.presence_penalty, "R", "subtract R from logits of recent tokens");
  add("--frequency-penalty", s.frequency_penalty, "R", "subtract R for each recent occurrence");
  command.add_option("--seed", flags.seed, "for the same text again (default: a new one)")
      ->check(CLI::Validator(SeedError, ""))
      ->group(group)
      ->type_name("S");
}

void AddFlags(CLI::App& command, RunFlags& flags) {
  flags.engine.Add(command);
  auto* prompt = command.add_option("-p,--prompt", flags.prompt, "the prompt")->type_name("TEXT");
  command.add_option("-f,--file", flags.prompt_file, "read the prompt from a file; - is stdin")
      ->type_name("FILE")
      ->excludes(prompt);
  command
      .add_option("-n,--max-tokens", flags.max_tokens,
                  "tokens to generate at most; beyond the context, older ones make room "
                  "(default: until the context is full)")
      ->check(CLI::Range(0, std::numeric_limits<std::int32_t>::max()))
      ->type_name("N");
  command.add_option("--stop", flags.stop, "end before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_flag("--json", flags.json, "print one JSON object instead of text");
  AddSamplingFlags(command, flags);
}

Result<std::string> ReadPrompt(const RunFlags& flags) {
  if (flags.prompt) return *flags.prompt;
  if (!flags.prompt_file.empty()) return ReadTextFile(flags.prompt_file);
  if (!StdinIsTerminal()) return ReadTextFile("-");
  return Status(StatusCode::kInvalidArgument,
                "there is no prompt; give one with -p TEXT or -f FILE, or pipe it in");
}

nlohmann::json ResultJson(Engine& engine, const RunFlags& flags, const GenerateResult& result,
                          double load_ms) {
  return {{"text", result.text},
          {"tokens", result.tokens},
          {"prompt_tokens", result.prompt_tokens},
          {"stop", StopReasonName(result.stop)},
          {"seed", flags.sampling.seed},
          {"shifts", result.shifts},
          {"reuse", ReuseJson(result.prompt_tokens)},
          {"timing",
           {{"load_ms", load_ms},
            {"restore_ms", 0.0},
            {"ttft_ms", result.first_token_ms},
            {"prefill_tokens_per_s", result.PrefillTokensPerSecond()},
            {"decode_tokens_per_s", result.DecodeTokensPerSecond()}}},
          {"memory", MemoryJson(engine)}};
}

// prompt 1,204 tokens: 1,204 computed · first token 38 ms · 61 tokens/s
void PrintSummary(const GenerateResult& result) {
  const std::string prompt = WithThousands(result.prompt_tokens);
  (void)std::fprintf(
      stderr, "\nprompt %s tokens: %s computed · first token %.0f ms · %.0f tokens/s\n",
      prompt.c_str(), prompt.c_str(), result.first_token_ms, result.DecodeTokensPerSecond());
}

GenerateRequest MakeRequest(const RunFlags& flags, std::vector<std::int32_t> prompt,
                            Progress& progress) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = flags.max_tokens;
  request.sampling = flags.sampling;
  request.stop = flags.stop;
  request.interrupt = &CatchInterrupt();
  request.on_prefill = [&progress, total = request.prompt.size()](std::int32_t done) {
    if (static_cast<std::size_t>(done) == total) return progress.Clear();
    progress.Show("reading the prompt: " + WithThousands(done) + " of " +
                  WithThousands(static_cast<std::int64_t>(total)) + " tokens");
  };
  if (!flags.json) {
    request.on_text = [](std::string_view text) {
      (void)std::fwrite(text.data(), 1, text.size(), stdout);
      return std::fflush(stdout) == 0;  // a reader that has gone ends the generation
    };
  }
  return request;
}

Status Run(RunFlags& flags) {
  const Clock::time_point start = Clock::now();
  KVCACHE_RETURN_IF_ERROR(flags.sampling.Check());
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadPrompt(flags));
  if (text.empty()) return {StatusCode::kInvalidArgument, "the prompt is empty"};
  flags.sampling.seed = flags.seed ? *flags.seed : std::random_device{}();

  KVCACHE_ASSIGN_OR_RETURN(const auto engine, flags.engine.Open());
  const std::chrono::duration<double, std::milli> load = Clock::now() - start;
  KVCACHE_ASSIGN_OR_RETURN(std::vector<std::int32_t> prompt, engine->tokenizer().Encode(text));
  Session session(*engine, SequenceId{0});
  Progress progress;
  if (!flags.json && StdoutIsTerminal()) (void)std::fwrite(text.data(), 1, text.size(), stdout);
  KVCACHE_ASSIGN_OR_RETURN(
      const GenerateResult result,
      Generate(session, *engine, MakeRequest(flags, std::move(prompt), progress)));
  if (flags.json) {
    PrintJson(ResultJson(*engine, flags, result, load.count()));
    return Status::Ok();
  }
  (void)std::fputc('\n', stdout);
  if (StderrIsTerminal()) PrintSummary(result);
  return Status::Ok();
}

}  // namespace

Command AddRun(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "Generate text that continues a prompt");
  const auto flags = std::make_shared<RunFlags>();
  AddFlags(*command, *flags);
  return {command, [flags] { return Run(*flags); }};
}

}  // namespace kvcache::cli
