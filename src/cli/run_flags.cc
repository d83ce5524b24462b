#include "cli/run_flags.h"

#include <charconv>
#include <cstdio>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/strings.h"
#include "cli/flag_checks.h"
#include "cli/json_report.h"

namespace kvcache::cli {
namespace {

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
    command.add_option(name, value, help)
        ->check(std::is_integral_v<std::remove_reference_t<decltype(value)>> ? WholeNumber()
                                                                             : DecimalNumber())
        ->group(group)
        ->type_name(type)
        ->capture_default_str();
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

void CheckValues(const RunFlags& flags) {
  const Status sampling = flags.sampling.Check();
  if (!sampling.ok()) throw CLI::ValidationError(sampling.message());
  for (const std::string& stop : flags.stop) {
    if (stop.empty()) throw CLI::ValidationError("a stop string is empty");
  }
  // Without a prompt, the prompt or the chat's messages come from standard input.
  const bool reads_messages = flags.chat.chat || (!flags.prompt && flags.prompt_file.empty());
  CheckOneStandardInput(
      {{reads_messages ? "the prompt or chat" : "--file", reads_messages ? "-" : flags.prompt_file},
       {"--tools", flags.chat.tools_file},
       {"--chat-template", flags.chat.chat_template}});
}

}  // namespace

void RunFlags::Add(CLI::App& command) {
  engine.Add(command);
  auto* text = command.add_option("-p,--prompt", prompt, "the prompt")->type_name("TEXT");
  command.add_option("-f,--file", prompt_file, "read the prompt from a file; - is stdin")
      ->type_name("FILE")
      ->excludes(text);
  command
      .add_option("-n,--max-tokens", max_tokens,
                  "tokens to generate at most; beyond the context, older ones make room, but "
                  "not in a chat (default: until the context is full)")
      ->check(WholeNumber())
      ->check(CLI::Range(0, std::numeric_limits<std::int32_t>::max()))
      ->type_name("N");
  command.add_option("--stop", stop, "end before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_flag("--json", json, "print one JSON object per answer instead of text");
  chat.Add(command);
  AddSamplingFlags(command, *this);
  RefuseEmptyValues(command, {"--prompt", "--system", "--stop"});
  command.final_callback([this] { CheckValues(*this); });
}

GenerateRequest RunFlags::MakeRequest(Progress& progress, std::size_t total) const {
  GenerateRequest request;
  request.max_tokens = max_tokens;
  request.sampling = sampling;
  request.stop = stop;
  request.interrupt = &CatchInterrupt();
  request.on_prefill = [&progress, total](std::int32_t done) {
    if (static_cast<std::size_t>(done) == total) return progress.Clear();
    const std::string of =
        total == 0 ? "" : " of " + WithThousands(static_cast<std::int64_t>(total));
    progress.Show("reading the prompt: " + WithThousands(done) + of + " tokens");
  };
  return request;
}

nlohmann::json AnswerJson(Engine& engine, const RunFlags& flags, const GenerateResult& result,
                          const PromptUse& use, double load_ms) {
  nlohmann::json reuse = ReuseJson(result.computed_tokens);
  reuse["matched"] = use.kept;
  reuse["restored"] = use.kept;
  reuse["tiers"]["live"] = use.kept;
  if (use.dropped > 0) {
    reuse["missed"].push_back({{"tokens", use.dropped}, {"reason", use.reason}});
  }
  return {{"text", result.text},
          {"tokens", result.tokens},
          {"prompt_tokens", result.prompt_tokens + use.kept},
          {"stop", StopReasonName(result.stop)},
          {"seed", flags.sampling.seed},
          {"shifts", result.shifts},
          {"reuse", std::move(reuse)},
          {"timing",
           {{"load_ms", load_ms},
            {"restore_ms", 0.0},
            {"ttft_ms", result.first_token_ms},
            {"prefill_tokens_per_s", result.PrefillTokensPerSecond()},
            {"decode_tokens_per_s", result.DecodeTokensPerSecond()}}},
          {"memory", MemoryJson(engine)}};
}

std::string AnswerSummary(const GenerateResult& result, const PromptUse& use) {
  std::string text = StrCat("prompt ", WithThousands(result.prompt_tokens + use.kept), " tokens: ");
  if (use.kept > 0) text += StrCat(WithThousands(use.kept), " kept, ");
  text += StrCat(WithThousands(result.computed_tokens), " computed");
  if (use.dropped > 0) {
    text +=
        StrCat(" (", use.reason, ": ", WithThousands(use.dropped), " in the cache did not fit)");
  }
  if (result.computed_tokens < result.prompt_tokens) return text;  // there is no first token
  char rates[96];
  (void)std::snprintf(rates, sizeof(rates), " · first token %.0f ms · %.0f tokens/s",
                      result.first_token_ms, result.DecodeTokensPerSecond());
  return text + rates;
}

}  // namespace kvcache::cli
