// Changes of tools within a conversation of Anthropic's API. A tool with "defer_loading" is not in the list that the
// template writes. It becomes available where a tool's result refers to it ("tool_reference") or a system message adds
// it ("tool_addition", which may also define a tool); there the prompt has its definition. "tool_removal" withdraws a
// tool. So the beginning of the prompt stays the same.
//
// Thread safety: free functions.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "server/request/fields.h"
#include "server/request/tools.h"

namespace kvcache::server {

// Functions by their names, as templates read them.
using KnownTools = std::map<std::string, Json>;

// The tools of a request.
struct OfferedTools {
  Tools tools{};       // `list`: those that the template writes; the rest holds for `callable`
  KnownTools known{};  // all, also those that text of the conversation defines
  std::vector<std::string> callable{};  // those that the conversation leaves in use
};

// Reads "tools", "tool_choice", and what "messages" say of tools. The first error is kept in `fields`, whose object is
// `body`.
OfferedTools ReadOfferedTools(const Json& body, Fields& fields, const SharedDialect& dialect);

// Returns whether blocks of this type are changes.
bool IsToolChange(const Json& type);

// Writes what a prompt says of changes: the definitions of tools that are added, one list for those that follow one
// another, and the names of those that are removed.
class ToolChangeText {
 public:
  // `known` must outlive this. `name` is the place of the blocks in the request, for errors.
  ToolChangeText(const KnownTools& known, std::string name)
      : known_(known), name_(std::move(name)) {}

  // Returns the text of a block that is a change. Errors: kInvalidArgument: it is malformed, or the tool is not known.
  Result<std::string> Write(const Json& block);
  // Returns what ends a list of definitions, before other text and at the end.
  std::string Close();

 private:
  const KnownTools& known_;
  std::string name_;
  bool open_ = false;  // whether a list has begun
};

}  // namespace kvcache::server
