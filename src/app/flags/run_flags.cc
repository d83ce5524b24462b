#include "app/flags/run_flags.h"

#include <limits>

#include "app/flags/flag_checks.h"
#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::app {
namespace {

void AddSamplingFlags(FlagSet command, RunFlags& flags) {
  const std::string group = "Sampling";
  SamplingParams& s = flags.sampling;
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    command.AddNumber(name, &value, help).Group(group).ValueName(type).ShowDefault();
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
      .AddNumber(
          "--seed", &flags.seed,
          "seed of the random numbers; the same seed gives the same text (default: a new seed)")
      .Group(group)
      .ValueName("S");
}

Status CheckValues(const RunFlags& flags) {
  KVCACHE_RETURN_IF_ERROR(flags.sampling.Check());
  KVCACHE_RETURN_IF_ERROR(flags.draft.Check());
  for (const std::string& stop : flags.stop) {
    if (stop.empty()) return InvalidArgument("a stop string is empty");
  }
  // Without a prompt, the prompt or the chat's messages come from standard input.
  const bool reads_messages = flags.chat.chat || (!flags.prompt && flags.prompt_file.empty());
  return CheckOneStandardInput(
      {{reads_messages ? "the prompt or chat" : "--file", reads_messages ? "-" : flags.prompt_file},
       {"--tools", flags.chat.tools_file},
       {"--mcp", flags.chat.mcp_file},
       {"--chat-template", flags.chat.chat_template}});
}

}  // namespace

void RunFlags::Add(FlagSet command) {
  command_ = command;
  engine.Add(command);
  const Flag text =
      command.AddText("-p,--prompt", &prompt, "the prompt to answer or continue").ValueName("TEXT");
  command.AddText("-f,--file", &prompt_file, "read the prompt from a file; - is standard input")
      .ValueName("FILE")
      .Excludes(text);
  command
      .AddNumber("-n,--max-tokens", &max_tokens,
                 "generate at most N tokens. When the context is full, the older half of it is "
                 "removed; in a chat the answer ends instead (default: until the context is full)")
      .Range(0, std::numeric_limits<std::int32_t>::max())
      .ValueName("N");
  command.AddText("--stop", &stop, "end the answer before this text; may be given several times")
      .ValueName("TEXT");
  command.AddSwitch("--json", &json, "print one JSON object per answer instead of text");
  chat.Add(command);
  draft.Add(command);
  adapters.Add(command);
  pictures.Add(command);
  store.Add(command);
  fetch.Add(command);
  AddSamplingFlags(command, *this);
  command.RefuseEmptyValues({"--prompt", "--system", "--stop"});
  command.CheckParsed([this] { return CheckValues(*this); });
}

GenerateRequest RunFlags::MakeRequest(Progress& progress, std::size_t total) const {
  GenerateRequest request;
  request.max_tokens = max_tokens;
  request.sampling = sampling;
  request.adapters = adapters.Uses();
  request.stop = stop;
  draft.Fill(request);
  request.interrupt = &CatchInterrupt();
  request.on_prefill = [&progress, total](std::int32_t done) {
    if (static_cast<std::size_t>(done) == total) return progress.Clear();
    const std::string of =
        total == 0 ? "" : " of " + WithThousands(static_cast<std::int64_t>(total));
    progress.Show("reading the prompt: " + WithThousands(done) + of + " tokens");
  };
  return request;
}

}  // namespace kvcache::app
