#include "cli/conversation_file.h"

#include <utility>

#include "base/strings.h"
#include "cli/terminal.h"
#include "platform/new_file.h"

namespace kvcache::cli {
namespace {

using nlohmann::ordered_json;

Status Wrong(const std::string& path, std::string_view what) {
  return {StatusCode::kInvalidArgument, StrCat(path, ": ", what)};
}

Status CheckMessages(const std::string& path, const ordered_json& messages) {
  if (!messages.is_array()) return Wrong(path, "expected an array of messages");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    const bool has_role =
        message.is_object() && message.contains("role") && message["role"].is_string();
    if (!has_role) return Wrong(path, StrCat("message ", i + 1, " has no \"role\""));
  }
  return Status::Ok();
}

}  // namespace

Status SaveConversation(const std::string& path, const ChatInput& input) {
  const ordered_json file = {{"version", 1},
                             {"messages", input.messages},
                             {"tools", input.tools},
                             {"variables", input.variables}};
  const std::string text = file.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  KVCACHE_ASSIGN_OR_RETURN(const auto out, NewFile::Create(path, text.size()));
  KVCACHE_RETURN_IF_ERROR(out->WriteAt(0, std::as_bytes(std::span(text))));
  return out->Commit();
}

Status LoadConversation(const std::string& path, ChatInput& input) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  ordered_json file = ordered_json::parse(text, nullptr, false);
  if (file.is_discarded()) return Wrong(path, "not JSON");
  if (file.is_array()) file = ordered_json::object({{"messages", file}});
  if (!file.is_object() || !file.contains("messages")) {
    return Wrong(path, "expected an object with \"messages\", or an array of messages");
  }
  KVCACHE_RETURN_IF_ERROR(CheckMessages(path, file["messages"]));
  const ordered_json tools = file.value("tools", input.tools);
  const ordered_json variables = file.value("variables", input.variables);
  if (!tools.is_null() && !tools.is_array()) return Wrong(path, "\"tools\" is not an array");
  if (!variables.is_object()) return Wrong(path, "\"variables\" is not an object");
  input.messages = file["messages"];
  input.tools = tools;
  input.variables = variables;
  return Status::Ok();
}

}  // namespace kvcache::cli
