// RunFlags::Adopt: what a stored model says, where the command line says nothing.
#include <algorithm>
#include <limits>
#include <string>

#include "app/flags/run_flags.h"
#include "app/terminal/notes.h"
#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"
#include "model_store/modelfile.h"

namespace kvcache::app {
namespace {

Status Wrong(const std::string& name, const std::string& value) {
  return InvalidArgument(StrCat("its parameter ", Quoted(name), " is ", Quoted(value),
                                ", which is out of range; a flag of 'kvcache run' replaces it"));
}

template <typename Number>
Status Parse(const std::string& name, const std::string& value, Number* number) {
  const auto parsed = ParseNumber<Number>(value);
  if (!parsed) return Wrong(name, value);
  *number = *parsed;
  return Status::Ok();
}

}  // namespace

Status RunFlags::AdoptParameter(const std::string& name, const std::string& value) {
  const auto adopt = [&](const std::string& flag, auto* number) {
    return Given(flag) ? Status::Ok() : Parse(name, value, number);
  };
  if (name == "temperature") return adopt("--temp", &sampling.temperature);
  if (name == "top_k") return adopt("--top-k", &sampling.top_k);
  if (name == "top_p") return adopt("--top-p", &sampling.top_p);
  if (name == "min_p") return adopt("--min-p", &sampling.min_p);
  if (name == "repeat_penalty") return adopt("--repeat-penalty", &sampling.repeat_penalty);
  if (name == "presence_penalty") return adopt("--presence-penalty", &sampling.presence_penalty);
  if (name == "frequency_penalty") return adopt("--frequency-penalty", &sampling.frequency_penalty);
  if (name == "repeat_last_n") {
    KVCACHE_RETURN_IF_ERROR(Parse(name, value, &sampling.penalty_window));
    if (sampling.penalty_window == 0) TurnPenaltiesOff();
    sampling.penalty_window = std::max(0, sampling.penalty_window);  // negative: all tokens
  }
  if (name == "stop" && !Given("--stop")) stop.push_back(value);
  if (name == "seed" && !Given("--seed") && !value.starts_with('-')) {  // negative: a new one
    std::uint64_t number = 0;
    KVCACHE_RETURN_IF_ERROR(Parse(name, value, &number));
    seed = number;
  }
  if (name == "num_ctx" && !Given("--ctx")) {
    int tokens = 0;
    KVCACHE_RETURN_IF_ERROR(Parse(name, value, &tokens));
    if (tokens < 1 || tokens > 1 << 28) return Wrong(name, value);
    engine.SetDefaultContext(tokens);
  }
  if (name == "num_predict" && !Given("--max-tokens")) {
    KVCACHE_RETURN_IF_ERROR(Parse(name, value, &max_tokens));
    max_tokens = max_tokens < 0 ? -1 : max_tokens;  // negative: no limit
  }
  return Status::Ok();
}

void RunFlags::TurnPenaltiesOff() {
  if (!Given("--repeat-penalty")) sampling.repeat_penalty = 1.0f;
  if (!Given("--presence-penalty")) sampling.presence_penalty = 0.0f;
  if (!Given("--frequency-penalty")) sampling.frequency_penalty = 0.0f;
}

Status RunFlags::Adopt(const StoredModel& model) {
  const auto in_model = [&](Status status) {
    return std::move(status).WithContext(StrCat("model '", model.name, "'"));
  };
  // repeat_last_n comes last, since 0 replaces the penalties.
  for (const bool last : {false, true}) {
    for (const auto& [name, value] : model.parameters) {
      if ((name == "repeat_last_n") != last) continue;
      KVCACHE_RETURN_IF_ERROR(in_model(AdoptParameter(name, value)));
    }
  }
  KVCACHE_RETURN_IF_ERROR(in_model(sampling.Check()));
  if (!model.draft.empty() && !Given("--draft")) draft.SetDefault(model.draft);
  pictures.SetDefault(model.projector);
  adapters.SetDefault(model.adapters);
  if (chat.raw) return Status::Ok();
  if (model.system && !model.system->empty() && !Given("--system")) chat.system = model.system;
  chat.stored_messages = model.messages;
  if (!model.chat_template || Given("--chat-template")) return Status::Ok();
  if (IsGoTemplate(*model.chat_template)) {
    AddNote(StrCat("the template of '", model.name,
                   "' is written in Go's template language; the one in its weights is used "
                   "instead"));
  } else {
    chat.stored_template = model.chat_template;
  }
  return Status::Ok();
}

Status CheckStoredParameters(const std::string& name,
                             const std::vector<StoredParameter>& parameters) {
  CommandLine line("kvcache", "", "");
  RunFlags flags;
  flags.Add(line.AddCommand("run", ""));
  StoredModel model;
  model.name = name;
  model.parameters = parameters;
  return flags.Adopt(model);
}

}  // namespace kvcache::app
