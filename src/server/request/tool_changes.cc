#include "server/request/tool_changes.h"

#include <cstdint>
#include <set>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "server/api/errors.h"

namespace kvcache::server {
namespace {

struct Change {
  enum class Kind : std::uint8_t { kAdd, kRemove };
  Kind kind = Kind::kAdd;
  std::string name;
  Json definition = nullptr;  // as "tools" has it; null: the tool is one of "tools"
};

// Returns what an object has under a key; null: nothing, or it is no object.
const Json& ValueOf(const Json& object, const char* key) {
  static const Json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

// Reads a block that is a change. Errors: kInvalidArgument; the message begins with `name`, the block's place.
Result<Change> ReadChange(const Json& block, const std::string& name) {
  const auto wrong = [&](const char* rule) {
    return InvalidArgument(
        StrCat(name, " has a block of type ", Quoted(block["type"].get<std::string>()), " ", rule));
  };
  Change change;
  if (block["type"] == "tool_removal") change.kind = Change::Kind::kRemove;
  const bool reference = block["type"] == "tool_reference";
  const Json& tool = ValueOf(block, "tool");
  Json named = reference ? ValueOf(block, "tool_name") : ValueOf(tool, "name");
  if (!reference && ValueOf(tool, "type") == "tool_definition") {
    if (change.kind == Change::Kind::kRemove) return wrong("that has a definition");
    change.definition = ValueOf(tool, "definition");
    named = ValueOf(change.definition, "name");
  } else if (!reference && ValueOf(tool, "type") != "tool_reference") {
    return wrong("without a 'tool' of type \"tool_reference\" or \"tool_definition\"");
  }
  if (!named.is_string()) return wrong("that names no tool");
  change.name = named.get<std::string>();
  return change;
}

// Calls `visit` with each block of a content, and with each block of the results in it.
template <typename Visit>
void VisitBlocks(const Json& content, const Visit& visit) {
  if (!content.is_array()) return;
  for (const Json& block : content) {
    visit(block);
    if (ValueOf(block, "type") == "tool_result") VisitBlocks(ValueOf(block, "content"), visit);
  }
}

// Returns the changes in messages, in their order. Skips what is malformed: whoever reads the messages reports it.
std::vector<Change> ChangesIn(const Json& messages) {
  std::vector<Change> changes;
  if (!messages.is_array()) return changes;
  for (const Json& message : messages) {
    VisitBlocks(ValueOf(message, "content"), [&](const Json& block) {
      if (!IsToolChange(ValueOf(block, "type"))) return;
      auto change = ReadChange(block, "");
      if (change.ok()) changes.push_back(std::move(*change));
    });
  }
  return changes;
}

bool IsDeferred(const Json& tool) {
  return ValueOf(tool, "defer_loading") == true;
}

std::string NameOf(const Json& tool) {
  const Json& name = ValueOf(tool, "name");
  return name.is_string() ? name.get<std::string>() : "";
}

// The tools of a request as it has them, and as the conversation leaves them.
struct Divided {
  Json all = Json::array();       // also those that the conversation defines
  Json used = Json::array();      // those that may be called at its end
  std::set<std::string> later{};  // names of those that the template does not write
};

Divided Divide(const Json& given, const std::vector<Change>& changes) {
  Divided tools{.all = given};
  std::map<std::string, bool> is_used;
  std::set<std::string> listed;
  for (const Json& tool : given) {
    is_used[NameOf(tool)] = !IsDeferred(tool);
    (IsDeferred(tool) ? tools.later : listed).insert(NameOf(tool));
  }
  for (const Change& change : changes) {
    is_used[change.name] = change.kind == Change::Kind::kAdd;
    if (change.definition.is_null()) continue;
    tools.all.push_back(change.definition);
    if (!listed.contains(change.name)) tools.later.insert(change.name);
  }
  for (const Json& tool : tools.all) {
    if (is_used[NameOf(tool)]) tools.used.push_back(tool);
  }
  return tools;
}

std::vector<std::string> NamesOf(const Json& tools) {
  std::vector<std::string> names;
  for (const Json& tool : tools) names.push_back(tool["function"]["name"]);
  return names;
}

void CheckDeferral(const Json& given, Fields& fields) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Json& deferred = ValueOf(given[i], "defer_loading");
    if (deferred.is_null() || deferred.is_boolean()) continue;
    fields.Fail(StrCat("tools[", i, "].defer_loading"), "must be a boolean");
  }
}

// Makes the error of a part of the request that of the whole.
void TakeError(const Fields& part, Fields& fields) {
  if (part.ok()) return;
  const std::size_t quoted = part.error_field().size() + 3;
  fields.Fail(part.error_field(), part.error().message().substr(quoted));
}

}  // namespace

bool IsToolChange(const Json& type) {
  return type == "tool_reference" || type == "tool_addition" || type == "tool_removal";
}

OfferedTools ReadOfferedTools(const Json& body, Fields& fields, const SharedDialect& dialect) {
  OfferedTools offered{.tools = ReadAnthropicTools(fields, dialect)};
  const Json& tools = ValueOf(body, "tools");
  const Json given = tools.is_array() ? tools : Json::array();
  CheckDeferral(given, fields);
  const std::vector<Change> changes = ChangesIn(ValueOf(body, "messages"));
  const Divided divided = Divide(given, changes);
  // Most requests change nothing.
  if (!fields.ok() || (divided.later.empty() && changes.empty())) {
    offered.callable = NamesOf(offered.tools.list);
    return offered;
  }
  const Json everything = {{"tools", divided.all}};
  Fields every(everything);
  const Tools all = ReadAnthropicTools(every, dialect);
  TakeError(every, fields);
  Json used = {{"tools", divided.used}};
  if (body.contains("tool_choice")) used["tool_choice"] = body["tool_choice"];
  Fields rest(used);
  offered.tools = ReadAnthropicTools(rest, dialect);
  TakeError(rest, fields);
  offered.callable = NamesOf(offered.tools.list);
  // Without a tool that may be called, there is none in the prompt either.
  offered.tools.list = offered.callable.empty() ? Json() : Json::array();
  for (const Json& tool : all.list) {
    const auto name = tool["function"]["name"].get<std::string>();
    const bool is_new = offered.known.insert_or_assign(name, tool["function"]).second;
    if (is_new && !offered.callable.empty() && !divided.later.contains(name)) {
      offered.tools.list.push_back(tool);
    }
  }
  return offered;
}

Result<std::string> ToolChangeText::Write(const Json& block) {
  KVCACHE_ASSIGN_OR_RETURN(const Change change, ReadChange(block, name_));
  const auto found = known_.find(change.name);
  if (found == known_.end()) {
    return InvalidArgument(
        StrCat(name_, " names the tool ", Quoted(change.name), ", which is not in 'tools'"));
  }
  if (change.kind == Change::Kind::kRemove) {
    return StrCat(Close(), "\nThe tool ", Quoted(change.name), " is no longer available.\n");
  }
  // The order of the keys is the one that Claude Code announces to models.
  Json shown = Json::object();
  for (const char* key : {"description", "name", "parameters"}) {
    if (const Json& value = ValueOf(found->second, key); !value.is_null()) shown[key] = value;
  }
  const char* const begin = std::exchange(open_, true) ? "" : "\n<functions>\n";
  return StrCat(begin, "<function>", Dump(shown), "</function>\n");
}

std::string ToolChangeText::Close() {
  return std::exchange(open_, false) ? "</functions>\n" : "";
}

}  // namespace kvcache::server
