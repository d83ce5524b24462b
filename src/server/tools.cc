#include "server/tools.h"

#include <cstdint>
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
  if (!strict.is_null() && !strict.is_boolean()) return fail(keys.strict, "must be a boolean");
  tools.strict = tools.strict || strict == true;
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

// Where a tool has the keys of its function.
enum class Nesting : std::uint8_t { kInFunction, kFlat };

// Takes the functions. A model that cannot call them is an error.
Tools ReadFunctions(Fields& fields, CallSyntax calls, Nesting nesting) {
  Tools tools{.syntax = calls};
  const Json* const given = FindTools(fields);
  if (given == nullptr) return tools;
  for (std::size_t i = 0; i < given->size(); ++i) {
    const Json& tool = (*given)[i];
    const bool flat = nesting == Nesting::kFlat;
    const std::string place = StrCat("tools[", i, flat ? "]" : "].function");
    if (!tool.is_object()) {
      fields.Fail(StrCat("tools[", i, "]"), "must be an object");
      return tools;
    }
    if (tool.value("type", Json("function")) != "function") continue;
    const Json function = flat ? tool : tool.value("function", Json());
    if (calls == CallSyntax::kNone || !function.is_object()) {
      const bool none = calls == CallSyntax::kNone;
      fields.Fail(none ? "tools" : place, none ? kNoTools : "must be an object");
      return tools;
    }
    if (!AddTool(fields, place, function, {"parameters", "strict"}, tools)) return tools;
  }
  return tools;
}

// Lets the answer be calls of all tools, or of the one with this name.
void Force(Fields& fields, const std::string& only, Tools& tools) {
  tools.forced = true;
  if (tools.list.empty()) return fields.Fail("tool_choice", "needs 'tools'");
  if (only.empty()) {
    tools.callable = tools.list;
    return;
  }
  for (const Json& tool : tools.list) {
    if (tool["function"]["name"] == only) tools.callable.push_back(tool);
  }
  tools.one_call = true;
  if (tools.callable.empty()) fields.Fail("tool_choice", "names no tool of 'tools'");
}

// Makes the form of the answer. A schema that cannot be enforced is an error.
void AddForm(Fields& fields, CallSyntax calls, Tools& tools) {
  if (!fields.ok() || !(tools.forced || tools.strict)) return;
  auto form = CallsForm({.tools = tools.forced ? tools.callable : tools.list,
                         .one = tools.one_call,
                         .forced = tools.forced},
                        calls);
  if (form.ok()) {
    tools.form = std::move(*form);
  } else {
    fields.Fail("tools", "cannot be enforced: " + form.status().message());
  }
}

// Reads the name in {"type": "function", "function": {"name"}}, or without the inner object.
std::string NameIn(const Json& choice) {
  const Json function = choice.value("function", Json());
  const Json name =
      function.is_object() ? function.value("name", Json()) : choice.value("name", Json());
  return name.is_string() ? name.get<std::string>() : "";
}

Tools ReadChosen(Fields& fields, CallSyntax calls, Nesting nesting) {
  Tools tools = ReadFunctions(fields, calls, nesting);
  tools.one_call = !fields.Bool("parallel_tool_calls", true);
  const Json* const choice = fields.Find("tool_choice");
  if (choice != nullptr && *choice == "none") return {};
  if (choice != nullptr && *choice == "required") {
    Force(fields, "", tools);
  } else if (choice != nullptr && choice->is_object() &&
             choice->value("type", Json()) == "function" && !NameIn(*choice).empty()) {
    Force(fields, NameIn(*choice), tools);
  } else if (choice != nullptr && *choice != "auto") {
    fields.Fail("tool_choice",
                "must be \"auto\", \"none\", \"required\" or an object that names a function");
  }
  AddForm(fields, calls, tools);
  return tools;
}

}  // namespace

Result<AnswerForm> FormOf(const Tools& tools, const AnswerForm& answer) {
  if (answer == nullptr || tools.forced) return tools.form;
  if (tools.list.empty()) return answer;
  // Either calls and nothing else, or the answer.
  const auto both = [&]() -> Result<AnswerForm> {
    KVCACHE_ASSIGN_OR_RETURN(
        const AnswerForm calls,
        CallsForm({.tools = tools.list, .one = tools.one_call, .forced = true, .loose = true},
                  tools.syntax));
    return EitherForm(calls, answer);
  };
  auto form = both();
  if (form.ok()) return form;
  return Status(
      StatusCode::kInvalidArgument,
      "the tools beside the form of the answer cannot be enforced: " + form.status().message());
}

Tools ReadOpenAiTools(Fields& fields, CallSyntax calls) {
  return ReadChosen(fields, calls, Nesting::kInFunction);
}

Tools ReadResponsesTools(Fields& fields, CallSyntax calls) {
  return ReadChosen(fields, calls, Nesting::kFlat);
}

Tools ReadOllamaTools(Fields& fields, CallSyntax calls) {
  Tools tools = ReadFunctions(fields, calls, Nesting::kInFunction);
  AddForm(fields, calls, tools);
  return tools;
}

Tools ReadAnthropicTools(Fields& fields, CallSyntax calls) {
  Tools tools{.syntax = calls};
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
  if (const Json* const choice = fields.Find("tool_choice"); choice != nullptr) {
    Fields inner(*choice, "tool_choice.");
    const std::string type = inner.Text("type");
    const std::string name = inner.Text("name");
    tools.one_call = inner.Bool("disable_parallel_tool_use", false);
    if (!inner.ok()) {
      fields.Fail("tool_choice", "must be an object with a 'type'");
    } else if (given == nullptr || given->empty()) {
      fields.Fail("tool_choice", "needs 'tools'");
    } else if (type == "none") {
      return {};
    } else if (type == "any" || (type == "tool" && !name.empty())) {
      Force(fields, type == "any" ? "" : name, tools);
    } else if (type == "tool") {
      fields.Fail("tool_choice", "has the 'type' \"tool\" without a 'name'");
    } else if (type != "auto") {
      fields.Fail("tool_choice", "has an unknown 'type'");
    }
  }
  AddForm(fields, calls, tools);
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
