#include "dialect/probe.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "dialect/history_form.h"
#include "dialect/scan.h"

namespace kvcache::probe {
namespace {

using Json = nlohmann::ordered_json;

Json Tools() {
  Json tools = Json::array();
  for (const std::string_view name : kNames) {
    tools.push_back(
        {{"type", "function"},
         {"function", {{"name", name}, {"description", "probe"}, {"parameters", Parameters()}}}});
  }
  return tools;
}

Json Call(const std::string& id, std::string_view name, const Json& arguments,
          const HistoryForm& form) {
  return {
      {"id", id},
      {"type", "function"},
      {"function",
       {{"name", name}, {"arguments", form.text_arguments ? Json(arguments.dump()) : arguments}}}};
}

Json Message(Json calls, const HistoryForm& form) {
  return {{"role", "assistant"},
          {"content", form.null_content ? Json() : Json("")},
          {"tool_calls", std::move(calls)}};
}

}  // namespace

Json Parameters() {
  return {{"type", "object"},
          {"properties",
           {{"kvcache_text", {{"type", "string"}, {"description", "text"}}},
            {"kvcache_number", {{"type", "integer"}, {"description", "number"}}}}},
          {"required", Json::array({"kvcache_text"})}};
}

Json Arguments(std::size_t index) {
  return {{"kvcache_text", StrCat("kvcache ", index)}, {"kvcache_number", index + 3}};
}

std::string IdOf(std::size_t index, std::string_view prefix, bool numbered) {
  // Mistral's templates want nine letters or digits.
  return numbered ? StrCat(prefix, kNames[index], ":", index) : StrCat("callprob", index + 1);
}

Json CallMessage(const std::vector<std::string>& ids, const HistoryForm& form) {
  Json calls = Json::array();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    calls.push_back(Call(ids[i], kNames[i], Arguments(i), form));
  }
  return Message(std::move(calls), form);
}

std::optional<std::string> Render(const ChatFormat& format, const HistoryForm& history,
                                  std::vector<Json> messages, GenerationPrompt generation) {
  ChatInput input;
  input.generation_prompt = generation;
  input.tools = Tools();
  input.messages.push_back({{"role", "user"}, {"content", kQuestion}});
  for (Json& message : messages) input.messages.push_back(std::move(message));
  OfferTools(history, input);
  auto written = format.Probe(std::move(input));
  if (!written.ok()) return std::nullopt;
  return std::move(*written);
}

std::string Behind(const std::string& text, std::string_view mark) {
  const std::size_t at = text.rfind(mark);
  return at == std::string::npos ? text : text.substr(at + mark.size());
}

Frame FrameOf(const ChatFormat& format, const HistoryForm& history) {
  const auto text = Render(format, history, {{{"role", "assistant"}, {"content", kAnswer}}});
  if (!text) return {};
  std::string begin = Behind(*text, kQuestion);
  begin.resize(std::min(begin.find(kAnswer), begin.size()));
  const bool written = text->find(kAnswer) != std::string::npos;
  return {.begin = std::move(begin), .end = written ? Behind(*text, kAnswer) : ""};
}

ToolForm FindToolForm(const ChatFormat& format) {
  for (const ToolForm form :
       {ToolForm::kTools, ToolForm::kFunctions, ToolForm::kSystemText, ToolForm::kSystemList}) {
    if (form == ToolForm::kTools && !format.Mentions("tools")) continue;
    if (form == ToolForm::kFunctions && !format.Mentions("functions")) continue;
    const auto written = Render(format, {.tools = form}, {}, GenerationPrompt::kAdd);
    if (written && written->find(kNames[1]) != std::string::npos) return form;
  }
  return ToolForm::kText;
}

Json ExampleCalls() {
  return Json::array({Call(IdOf(0, "", false), "FUNCTION", {{"PARAMETER", "VALUE"}}, {})});
}

std::string ExampleOf(const ChatFormat& format, const HistoryForm& history) {
  const Json call = Call(IdOf(0, "", false), "FUNCTION", {{"PARAMETER", "VALUE"}}, history);
  const auto text = Render(format, history, {Message(Json::array({call}), history)});
  if (!text) return "";
  const Frame frame = FrameOf(format, history);
  std::string example(Trimmed(Behind(*text, kQuestion)));
  const std::string begin(Trimmed(frame.begin)), end(Trimmed(frame.end));
  if (example.starts_with(begin)) example.erase(0, begin.size());
  if (example.ends_with(end)) example.resize(example.size() - end.size());
  return example;
}

}  // namespace kvcache::probe
