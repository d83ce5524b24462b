#include "server/tools.h"

#include <utility>

#include "base/strings.h"
#include "chat_template/chat_format.h"
#include "engine/json_text.h"

namespace kvcache::server {
namespace {

// The keys of a tool in one API.
struct ToolKeys {
  const char* parameters;
  const char* strict;
};

constexpr const char* kNoTools =
    "are not supported: the model's template has no tools, or writes calls in a way that this "
    "server "
    "does not know";

bool AddTool(Fields& fields, const std::string& place, const Json& tool, const ToolKeys& keys,
             Tools& tools) {
  const auto fail = [&](const std::string& key, const char* rule) {
    fields.Fail(StrCat(place, ".", key), rule);
    return false;
  };
  const Json name = tool.value("name", Json());
  if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
    return fail("name", "must be a string that is not empty");
  }
  Json function = {{"name", name}};
  const Json description = tool.value("description", Json());
  if (!description.is_null() && !description.is_string())
    return fail("description", "must be a string");
  function["description"] = description.is_null() ? Json("") : description;
  Json parameters = tool.value(keys.parameters, Json());
  if (parameters.is_null()) parameters = {{"type", "object"}, {"properties", Json::object()}};
  if (!parameters.is_object()) return fail(keys.parameters, "must be an object");
  function["parameters"] = std::move(parameters);
  const Json strict = tool.value(keys.strict, Json());
  if (!strict.is_null() && strict != false) {
    return fail(keys.strict, "is not supported by this server: calls follow no schema by force");
  }
  tools.names.push_back(name.get<std::string>());
  tools.list.push_back({{"type", "function"}, {"function", std::move(function)}});
  return true;
}

const Json* FindTools(Fields& fields) {
  const Json* const given = fields.Find("tools");
  if (given == nullptr || given->is_array()) return given;
  fields.Fail("tools", "must be an array");
  return nullptr;
}

// Takes the functions. A model that cannot call them is an error.
Tools ReadFunctions(Fields& fields, CallSyntax calls) {
  Tools tools;
  const Json* const given = FindTools(fields);
  if (given == nullptr) return tools;
  for (std::size_t i = 0; i < given->size(); ++i) {
    const Json& tool = (*given)[i];
    const std::string place = StrCat("tools[", i, "]");
    if (!tool.is_object()) {
      fields.Fail(place, "must be an object");
      return tools;
    }
    if (tool.value("type", Json("function")) != "function") continue;
    const Json function = tool.value("function", Json());
    if (calls == CallSyntax::kNone || !function.is_object()) {
      const bool none = calls == CallSyntax::kNone;
      fields.Fail(none ? "tools" : place + ".function", none ? kNoTools : "must be an object");
      return tools;
    }
    if (!AddTool(fields, place + ".function", function, {"parameters", "strict"}, tools))
      return tools;
  }
  return tools;
}

constexpr const char* kForces =
    "forces a call; that is not supported by this server: use \"auto\" or \"none\"";

}  // namespace

Tools ReadOpenAiTools(Fields& fields, CallSyntax calls) {
  Tools tools = ReadFunctions(fields, calls);
  tools.one_call = !fields.Bool("parallel_tool_calls", true);
  const Json* const choice = fields.Find("tool_choice");
  if (choice != nullptr && *choice == "none") return {};
  if (choice != nullptr && *choice != "auto") {
    const bool forces = *choice == "required" || choice->is_object();
    fields.Fail("tool_choice", forces ? kForces : "must be \"auto\" or \"none\"");
  }
  return tools;
}

Tools ReadOllamaTools(Fields& fields, CallSyntax calls) {
  return ReadFunctions(fields, calls);
}

Tools ReadAnthropicTools(Fields& fields, CallSyntax calls) {
  Tools tools;
  const Json* const given = FindTools(fields);
  for (std::size_t i = 0; given != nullptr && i < given->size(); ++i) {
    const Json& tool = (*given)[i];
    const std::string place = StrCat("tools[", i, "]");
    if (!tool.is_object()) {
      fields.Fail(place, "must be an object");
      return tools;
    }
    const Json type = tool.value("type", Json());
    if (!type.is_null() && type != "custom") continue;
    if (calls == CallSyntax::kNone) {
      fields.Fail("tools", kNoTools);
      return tools;
    }
    if (!AddTool(fields, place, tool, {"input_schema", "strict"}, tools)) return tools;
  }
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return tools;
  Fields inner(*choice, "tool_choice.");
  const std::string type = inner.Text("type");
  tools.one_call = inner.Bool("disable_parallel_tool_use", false);
  if (!inner.ok()) {
    fields.Fail("tool_choice", "must be an object with a 'type'");
  } else if (given == nullptr || given->empty()) {
    fields.Fail("tool_choice", "needs 'tools'");
  } else if (type == "none") {
    return {};
  } else if (type != "auto") {
    const bool forces = type == "any" || type == "tool";
    fields.Fail("tool_choice", forces ? kForces : "has an unknown 'type'");
  }
  return tools;
}

CallSyntax CallSyntaxOf(const ChatFormat& format) {
  if (!format.Mentions("tools")) return CallSyntax::kNone;
  constexpr std::string_view kName = "kvcache_probe";
  const Json arguments = {{"kvcache_key", "kvcache_value"}};
  const Json call = {{"id", "callprobe"},
                     {"type", "function"},
                     {"function", {{"name", kName}, {"arguments", arguments}}}};
  ChatInput input;
  input.generation_prompt = GenerationPrompt::kOmit;
  input.messages.push_back({{"role", "user"}, {"content", "question"}});
  input.messages.push_back(
      {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}});
  const auto written = format.Write(std::move(input));
  if (!written.ok()) return CallSyntax::kNone;
  // The parser reads what the template wrote, if it knows the syntax.
  const std::string& text = written->text;
  const auto reads = [&](CallSyntax syntax, std::size_t begin) {
    if (begin == std::string::npos) return false;
    AnswerParser parser({.calls = syntax, .tools = {std::string(kName)}, .one_call = true});
    const auto parts = parser.Push(std::string_view(text).substr(begin));
    return parser.done() && parts.size() == 1 && parts[0].call.arguments == arguments;
  };
  const std::size_t name = text.find(kName);
  if (name == std::string::npos) return CallSyntax::kNone;
  if (reads(CallSyntax::kTags, text.rfind("<tool_call>", name))) return CallSyntax::kTags;
  if (reads(CallSyntax::kJson, text.rfind('[', name))) return CallSyntax::kJson;
  if (reads(CallSyntax::kJson, text.rfind('{', name))) return CallSyntax::kJson;
  return CallSyntax::kNone;
}

}  // namespace kvcache::server
