#include "cli/run_flags.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <type_traits>

#include "base/strings.h"
#include "cli/flag_checks.h"

namespace kvcache::cli {
namespace {

// CLI11 reads "-1" and numbers beyond 64 bits as other numbers.
std::string SeedError(const std::string& text) {
  std::uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);
  if (error == std::errc() && stop == end) return {};
  return StrCat(Quoted(text), " is not a whole number from 0 to 2^64 - 1");
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
  add("--temp", s.temperature, "T",
      "temperature: higher is more varied; 0 always takes the most likely token");
  add("--top-k", s.top_k, "K", "sample from the K most likely tokens; 0: from all");
  add("--top-p", s.top_p, "P", "sample from the most likely tokens whose probabilities sum to P");
  add("--min-p", s.min_p, "P", "leave out tokens less than P times as likely as the most likely");
  add("--repeat-penalty", s.repeat_penalty, "R",
      "divide the logits of the last 64 tokens by R; 1: off");
  add("--presence-penalty", s.presence_penalty, "R",
      "subtract R from the logits of the last 64 tokens; 0: off");
  add("--frequency-penalty", s.frequency_penalty, "R",
      "subtract R from a logit for each occurrence in the last 64 tokens; 0: off");
  command
      .add_option(
          "--seed", flags.seed,
          "seed of the random numbers; the same seed gives the same text (default: a new seed)")
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
  auto* text = command.add_option("-p,--prompt", prompt, "the prompt to answer or continue")
                   ->type_name("TEXT");
  command.add_option("-f,--file", prompt_file, "read the prompt from a file; - is standard input")
      ->type_name("FILE")
      ->excludes(text);
  command
      .add_option("-n,--max-tokens", max_tokens,
                  "generate at most N tokens. When the context is full, the older half of it is "
                  "removed; in a "
                  "chat the answer ends instead (default: until the context is full)")
      ->check(WholeNumber())
      ->check(CLI::Range(0, std::numeric_limits<std::int32_t>::max()).description(""))
      ->type_name("N");
  command.add_option("--stop", stop, "end the answer before this text; may be given several times")
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

}  // namespace kvcache::cli
