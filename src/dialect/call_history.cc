#include "dialect/call_history.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fnv.h"
#include "base/strings.h"
#include "chat_template/chat_format.h"
#include "json/closable_json.h"
#include "json/json_text.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kNineSize = 9;

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

bool IsMessage(const Json& message, const char* role) {
  return message.is_object() && TextOf(message, "role") == role;
}

bool IsCall(const Json& call) {
  return call.is_object() && call.contains("function") && call["function"].is_object();
}

// Returns the calls of a message, if it has any and all are calls.
Json* CallsOf(Json& message) {
  if (!message.is_object()) return nullptr;
  const auto found = message.find("tool_calls");
  const bool calls = found != message.end() && found->is_array() &&
                     std::all_of(found->begin(), found->end(), IsCall);
  return calls ? &*found : nullptr;
}

// Returns the calls of an answer. `count`: those of the conversation so far.
std::vector<OpenCall> NoteCalls(Json& calls, std::size_t& count) {
  std::vector<OpenCall> noted;
  for (Json& call : calls) {
    ++count;
    if (TextOf(call, "id").empty()) call["id"] = NumberedId(count);
    Json& function = call["function"];
    function["arguments"] = CallArguments(function.value("arguments", Json()));
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

// Returns whether a template writes a conversation with this id.
bool Writes(const ChatFormat& format, const char* id) {
  const Json call = {{"id", id},
                     {"type", "function"},
                     {"function", {{"name", "f"}, {"arguments", Json::object()}}}};
  ChatInput input;
  input.generation_prompt = GenerationPrompt::kOmit;
  input.messages = {{{"role", "user"}, {"content", "question"}},
                    {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}},
                    {{"role", "tool"}, {"name", "f"}, {"tool_call_id", id}, {"content", "result"}}};
  return format.Probe(std::move(input)).ok();
}

bool HasNine(const std::string& id) {
  return id.size() == kNineSize &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
}

// Returns nine letters and digits that stand for an id.
std::string NineOf(const std::string& id) {
  if (HasNine(id)) return id;
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  Fnv1a sum;
  sum.Add(id);
  std::string out;
  for (std::uint64_t rest = sum.sum(); out.size() < kNineSize; rest /= kDigits.size()) {
    out += kDigits[rest % kDigits.size()];
  }
  return out;
}

// Returns the ids of an answer's calls by those that clients know. `count`: the calls of the conversation so far.
std::map<std::string, std::string> NameCalls(std::string_view prefix, Json& calls,
                                             std::size_t& count) {
  std::map<std::string, std::string> ids;
  for (Json& call : calls) {
    const std::string id = TextOf(call, "id");
    const std::string begin = StrCat(prefix, TextOf(call["function"], "name"), ":");
    const std::string own = id.starts_with(begin) ? id : StrCat(begin, count);
    ++count;
    call["id"] = ids[id] = own;
  }
  return ids;
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
  if (!messages.is_array()) return;
  std::vector<OpenCall> calls;
  std::size_t count = 0;
  for (Json& message : messages) {
    Json* const own = CallsOf(message);
    if (own != nullptr && IsMessage(message, "assistant")) calls = NoteCalls(*own, count);
    if (IsMessage(message, "tool")) CompleteResult(message, calls);
  }
}

std::string UnusedCallId(const Json& messages) {
  std::set<std::string> used;
  for (const Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (!message.is_object() || calls == message.end() || !calls->is_array()) continue;
    for (const Json& call : *calls) used.insert(TextOf(call, "id"));
  }
  std::size_t number = used.size() + 1;
  while (used.contains(NumberedId(number))) ++number;
  return NumberedId(number);
}

IdForm IdFormOf(const ChatFormat& format, const Dialect& dialect) {
  if (dialect.calls.numbered) return IdForm::kNamed;
  if (!dialect.has_calls() || Writes(format, "call_0123456789abcdef")) return IdForm::kAny;
  return Writes(format, "callprob1") ? IdForm::kNine : IdForm::kAny;
}

void RewriteIds(IdForm form, std::string_view prefix, Json& messages) {
  if (form == IdForm::kAny) return;
  std::map<std::string, std::string> named;
  const auto rewrite = [&](Json& object, const char* key) {
    const std::string id = TextOf(object, key);
    if (id.empty()) return;
    if (form == IdForm::kNine) object[key] = NineOf(id);
    if (const auto found = named.find(id); found != named.end()) object[key] = found->second;
  };
  std::size_t count = 0;
  for (Json& message : messages) {
    if (Json* const calls = CallsOf(message)) {
      if (form == IdForm::kNamed) named = NameCalls(prefix, *calls, count);
      for (Json& call : *calls) rewrite(call, "id");
    }
    if (IsMessage(message, "tool")) rewrite(message, "tool_call_id");
  }
}

}  // namespace kvcache
