#include "server/request/tools.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "dialect/model_dialect.h"
#include "json/json_text.h"

namespace kvcache::server {
namespace {

constexpr const char* kNoTools =
    "are not supported: the model's template has no tools, or writes calls in a way that this "
    "server does not know";

// Adds a function with the keys that it came with. `place` is the function's, and `schema` what its API calls the
// parameters, for errors.
bool AddTool(Fields& fields, const std::string& place, Json function, const char* schema,
             Tools& tools) {
  const auto fail = [&](const char* key, const char* rule) {
    fields.Fail(StrCat(place, ".", key), rule);
    return false;
  };
  const Json name = function.value("name", Json());
  if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
    return fail("name", "must be a string that is not empty");
  }
  const Json description = function.value("description", Json());
  if (!description.is_null() && !description.is_string()) {
    return fail("description", "must be a string");
  }
  const Json parameters = function.value("parameters", Json());
  if (!parameters.is_null() && !parameters.is_object()) {
    return fail(schema, "must be an object");
  }
  const Json strict = function.value("strict", Json());
  if (!strict.is_null() && !strict.is_boolean()) return fail("strict", "must be a boolean");
  tools.strict = tools.strict || strict == true;
  tools.list.push_back({{"type", "function"}, {"function", std::move(function)}});
  tools.callable.push_back(tools.list.back());
  return true;
}

const Json* FindTools(Fields& fields) {
  const Json* const given = fields.Find("tools");
  if (given == nullptr || given->is_array()) return given;
  fields.Fail("tools", "must be an array");
  return nullptr;
}

// Where a tool has the keys of its function: in an inner object, beside its type, or so with Anthropic's names.
enum class Nesting : std::uint8_t { kInFunction, kFlat, kAnthropic };

// Returns a tool of Anthropic's as the function that templates read, without what only the API knows.
Json AsFunction(const Json& tool) {
  Json function = Json::object();
  for (const auto& [key, value] : tool.items()) {
    if (key == "input_schema") function["parameters"] = value;
    if (key == "name" || key == "description" || key == "strict") function[key] = value;
  }
  return function;
}

Json FunctionOf(const Json& tool, Nesting nesting) {
  if (nesting == Nesting::kInFunction) return tool.value("function", Json());
  if (nesting == Nesting::kAnthropic) return AsFunction(tool);
  Json function = tool;
  function.erase("type");
  return function;
}

bool IsFunction(const Json& tool, Nesting nesting) {
  const Json type = tool.value("type", Json());
  if (nesting == Nesting::kAnthropic) return type.is_null() || type == "custom";
  return type == "function" || !tool.contains("type");
}

// Takes the functions. A model that cannot call them is an error.
Tools ReadFunctions(Fields& fields, const SharedDialect& dialect, Nesting nesting) {
  Tools tools{.dialect = dialect};
  const Json* const given = FindTools(fields);
  for (std::size_t i = 0; given != nullptr && i < given->size(); ++i) {
    const Json& tool = (*given)[i];
    const std::string place =
        StrCat("tools[", i, nesting == Nesting::kInFunction ? "].function" : "]");
    if (!tool.is_object()) {
      fields.Fail(StrCat("tools[", i, "]"), "must be an object");
      return tools;
    }
    if (!IsFunction(tool, nesting)) continue;
    Json function = FunctionOf(tool, nesting);
    const bool none = !dialect->has_calls();
    if (none || !function.is_object()) {
      fields.Fail(none ? "tools" : place, none ? kNoTools : "must be an object");
      return tools;
    }
    const char* const schema = nesting == Nesting::kAnthropic ? "input_schema" : "parameters";
    if (!AddTool(fields, place, std::move(function), schema, tools)) return tools;
  }
  return tools;
}

// Leaves the tools with these names callable.
void Limit(Fields& fields, const std::vector<std::string>& names, Tools& tools) {
  Json callable = Json::array();
  for (const Json& tool : tools.list) {
    const auto& name = tool["function"]["name"].get_ref<const std::string&>();
    if (std::find(names.begin(), names.end(), name) != names.end()) callable.push_back(tool);
  }
  for (const std::string& name : names) {
    const bool known = std::any_of(callable.begin(), callable.end(), [&](const Json& tool) {
      return tool["function"]["name"] == name;
    });
    if (!known) fields.Fail("tool_choice", StrCat("names ", Quoted(name), ", no tool of 'tools'"));
  }
  tools.limited = callable.size() < tools.list.size();
  tools.callable = std::move(callable);
}

// Lets the answer be calls of all tools, or one call of the tool with this name.
void Force(Fields& fields, const std::string& only, Tools& tools) {
  tools.forced = true;
  if (tools.list.empty()) return fields.Fail("tool_choice", "needs 'tools'");
  if (only.empty()) return;
  Limit(fields, {only}, tools);
  tools.one_call = true;
}

// Makes the form of the answer. A schema that cannot be enforced is an error. Of calls without tags, the parser takes
// only those of callable tools, so that other answers that begin with a bracket are text.
void AddForm(Fields& fields, Tools& tools) {
  const bool tags = !tools.dialect->calls.bare();
  const bool limits = tools.limited && tags;
  if (tools.callable.empty() && !tags) return;  // no call is none of a strict tool either
  if (!fields.ok() || !(tools.forced || tools.strict || limits)) return;
  auto form = CallsForm({.tools = tools.callable,
                         .one = tools.one_call,
                         .forced = tools.forced,
                         .loose = !tools.forced && !tools.strict},
                        *tools.dialect);
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

// Reads {"type": "allowed_tools", "mode": …, "tools": […]}; chats have mode and tools in an inner object.
void Allow(Fields& fields, const Json& choice, Tools& tools) {
  const Json given = choice.value("allowed_tools", Json());
  const Json& inner = given.is_null() ? choice : given;
  Json mode = inner.is_object() ? inner.value("mode", Json()) : Json(0);
  if (mode.is_null()) mode = "auto";
  const Json list = inner.is_object() ? inner.value("tools", Json()) : Json();
  if ((mode != "auto" && mode != "required") || !list.is_array()) {
    return fields.Fail("tool_choice",
                       "needs the 'mode' \"auto\" or \"required\" and an array of 'tools'");
  }
  std::vector<std::string> names;
  for (const Json& tool : list) {
    if (!tool.is_object()) return fields.Fail("tool_choice", "has 'tools' that are no objects");
    if (tool.value("type", Json("function")) != "function") continue;  // skipped in "tools" too
    names.push_back(NameIn(tool));
  }
  if (mode == "required") Force(fields, "", tools);
  Limit(fields, names, tools);
  if (!tools.callable.empty()) return;
  if (tools.forced) fields.Fail("tool_choice", "allows no function of 'tools'");
}

Tools ReadChosen(Fields& fields, const SharedDialect& dialect, Nesting nesting) {
  Tools tools = ReadFunctions(fields, dialect, nesting);
  tools.one_call = !fields.Bool("parallel_tool_calls", true);
  const Json* const choice = fields.Find("tool_choice");
  const Json type =
      choice != nullptr && choice->is_object() ? choice->value("type", Json()) : Json();
  if (choice != nullptr && *choice == "none") return {};
  if (choice != nullptr && *choice == "required") {
    Force(fields, "", tools);
  } else if (type == "function" && !NameIn(*choice).empty()) {
    Force(fields, NameIn(*choice), tools);
  } else if (type == "allowed_tools") {
    Allow(fields, *choice, tools);
  } else if (choice != nullptr && *choice != "auto") {
    fields.Fail("tool_choice",
                "must be \"auto\", \"none\", \"required\" or an object that names a function");
  }
  AddForm(fields, tools);
  return tools;
}

}  // namespace

Result<AnswerForm> FormOf(const Tools& tools, const AnswerForm& answer) {
  if (answer == nullptr || tools.forced) return tools.form;
  if (tools.callable.empty()) return answer;
  // Either calls and nothing else, or the answer.
  const auto both = [&]() -> Result<AnswerForm> {
    KVCACHE_ASSIGN_OR_RETURN(
        const AnswerForm calls,
        CallsForm({.tools = tools.callable, .one = tools.one_call, .forced = true, .loose = true},
                  *tools.dialect));
    KVCACHE_ASSIGN_OR_RETURN(const AnswerForm framed, Framed(answer, *tools.dialect));
    return EitherForm(calls, framed);
  };
  auto form = both();
  if (form.ok()) return form;
  return InvalidArgument("the tools beside the form of the answer cannot be enforced: " +
                         form.status().message());
}

void SetCalls(const Tools& tools, AnswerSyntax& answer) {
  answer.one_call = tools.one_call;
  answer.tools.clear();
  AddOffered(tools.callable, answer);
  answer.calls = !tools.callable.empty();
}

Tools ReadOpenAiTools(Fields& fields, const SharedDialect& dialect) {
  return ReadChosen(fields, dialect, Nesting::kInFunction);
}

Tools ReadResponsesTools(Fields& fields, const SharedDialect& dialect) {
  return ReadChosen(fields, dialect, Nesting::kFlat);
}

Tools ReadOllamaTools(Fields& fields, const SharedDialect& dialect) {
  Tools tools = ReadFunctions(fields, dialect, Nesting::kInFunction);
  AddForm(fields, tools);
  return tools;
}

Tools ReadAnthropicTools(Fields& fields, const SharedDialect& dialect) {
  Tools tools = ReadFunctions(fields, dialect, Nesting::kAnthropic);
  const Json* const given = fields.Find("tools");
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
  AddForm(fields, tools);
  return tools;
}

}  // namespace kvcache::server
