#include "server/request/call_history.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/chat/json_text.h"
#include "server/output/closable_json.h"

namespace kvcache::server {
namespace {

// A call of the last answer that has calls.
struct OpenCall {
  std::string id{};
  std::string name{};
  bool answered = false;
};

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// The id of a call that has none has nine letters and digits, because some templates accept nothing else.
std::string NumberedId(std::size_t number) {
  const std::string digits = StrCat(number);
  return "call" + std::string(5 - std::min<std::size_t>(5, digits.size()), '0') + digits;
}

// Returns the calls of an answer. `count`: those of the conversation so far.
std::vector<OpenCall> NoteCalls(Json& calls, std::size_t& count) {
  std::vector<OpenCall> noted;
  for (Json& call : calls) {
    ++count;
    if (TextOf(call, "id").empty()) call["id"] = NumberedId(count);
    noted.push_back({.id = TextOf(call, "id"), .name = TextOf(call["function"], "name")});
  }
  return noted;
}

void CompleteResult(Json& message, std::vector<OpenCall>& calls) {
  const std::string id = TextOf(message, "tool_call_id");
  std::string name = TextOf(message, "name");
  if (name.empty()) name = TextOf(message, "tool_name");
  const auto call = std::find_if(calls.begin(), calls.end(), [&](const OpenCall& each) {
    if (!id.empty()) return each.id == id;
    return !each.answered && (name.empty() || each.name == name);
  });
  if (call != calls.end()) {
    call->answered = true;
    if (id.empty()) message["tool_call_id"] = call->id;
    if (name.empty()) name = call->name;
  }
  if (!name.empty()) message["name"] = name;
}

}  // namespace

Json CallArguments(Json arguments) {
  if (arguments.is_null()) return Json::object();
  if (!arguments.is_string()) return arguments;
  const auto& text = arguments.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == text.npos) return Json::object();
  auto parsed = ParseJson(text);
  if (!parsed.ok()) {
    ClosableJson closable;
    std::string whole = closable.Take(text);
    parsed = ParseJson(whole += closable.Close());
  }
  if (parsed.ok() && parsed->is_null()) return Json::object();
  return parsed.ok() && parsed->is_object() ? std::move(*parsed) : arguments;
}

void CompleteCalls(Json& messages) {
  std::vector<OpenCall> calls;
  std::size_t count = 0;
  for (Json& message : messages) {
    const auto found = message.find("tool_calls");
    if (message["role"] == "assistant" && found != message.end()) calls = NoteCalls(*found, count);
    if (message["role"] == "tool") CompleteResult(message, calls);
  }
}

}  // namespace kvcache::server
