#include "dialect/history_form.h"

#include <ctime>
#include <string>
#include <utility>

#include "base/strings.h"
#include "dialect/call_text.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Bytes that are no text become U+FFFD.
std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Returns the system message at the beginning. Adds one if there is none.
Json& SystemMessage(Json& messages) {
  if (messages.empty() || !messages[0].is_object() ||
      messages[0].value("role", Json()) != "system") {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", ""}});
  }
  return messages[0];
}

// Returns the functions of tools without what is around them.
Json Functions(const Json& tools) {
  Json functions = Json::array();
  for (const Json& tool : tools) {
    functions.push_back(tool.is_object() ? tool.value("function", tool) : tool);
  }
  return functions;
}

// What a template that has no place for tools writes of them.
std::string TextOf(const Json& tools, const std::string& example) {
  std::string text = "# Tools\n\nYou may call these functions:\n\n";
  for (const Json& function : Functions(tools)) text += Dump(function) + "\n";
  if (example.empty()) return text;
  return StrCat(text,
                "\nTo call a function, write its name and its arguments in this form, and nothing "
                "behind it:\n\n",
                example);
}

void AppendText(Json& message, const std::string& text) {
  Json& content = message["content"];
  if (content.is_array()) {
    content.push_back({{"type", "text"}, {"text", "\n\n" + text}});
  } else {
    const std::string before = content.is_string() ? content.get<std::string>() : "";
    content = StrCat(before, before.empty() ? "" : "\n\n", text);
  }
}

// Writes the calls of a message into its text.
void AppendCalls(const CallSyntax& syntax, Json& message) {
  const std::string text = CallText(syntax, message["tool_calls"]);
  if (!text.empty()) AppendText(message, text);
}

std::string DateOf(const ChatInput& input) {
  char text[32];
  const std::tm now = input.now ? *input.now : std::tm{};
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &now)};
}

}  // namespace

void Adapt(const HistoryForm& history, Json& messages) {
  for (Json& message : messages) {
    if (!message.is_object() || message.value("role", Json()) != "assistant") continue;
    const auto thoughts = message.find("reasoning_content");
    if (thoughts != message.end() && history.thoughts_key != "reasoning_content" &&
        !message.contains(history.thoughts_key)) {
      message[history.thoughts_key] = Json(*thoughts);
      message.erase("reasoning_content");
    }
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array() || calls->empty()) continue;
    if (history.text_calls.form != CallForm::kNone) {
      AppendCalls(history.text_calls, message);
      continue;
    }
    if (history.text_arguments) {
      for (Json& call : *calls) {
        if (!call.is_object() || !call.contains("function")) continue;
        Json& function = call["function"];
        if (!function.is_object() || !function.contains("arguments")) continue;
        Json& arguments = function["arguments"];
        if (!arguments.is_string()) arguments = Dump(arguments);
      }
    }
    const Json content = message.value("content", Json());
    const bool empty = content.is_string() && content.get_ref<const std::string&>().empty();
    if (history.null_content && empty) message["content"] = nullptr;
  }
}

void OfferTools(const HistoryForm& history, ChatInput& input) {
  const bool functions = history.tools == ToolForm::kFunctions;
  if (functions) {
    const Json tools = input.tools.is_null() ? Json::array() : Functions(input.tools);
    Json& variables = input.variables;
    if (!variables.contains("functions")) variables["functions"] = Dump(tools, 4);
    if (!variables.contains("datetime")) variables["datetime"] = DateOf(input);
  }
  if (functions || history.tools == ToolForm::kTools || input.tools.is_null()) return;
  Json& message = SystemMessage(input.messages);
  switch (history.tools) {
    case ToolForm::kSystemText: message["tools"] = Dump(Functions(input.tools)); break;
    case ToolForm::kSystemList: message["tools"] = input.tools; break;
    default: AppendText(message, TextOf(input.tools, history.example)); break;
  }
}

}  // namespace kvcache
