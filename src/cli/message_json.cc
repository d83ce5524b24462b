#include "cli/message_json.h"

namespace kvcache::cli {
namespace {

using nlohmann::ordered_json;

// The member if it is a string; else null.
const std::string* StringMember(const ordered_json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

std::string Compact(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string PartText(const ordered_json& part) {
  if (const auto* text = part.get_ptr<const std::string*>()) return *text;
  const std::string* const text = StringMember(part, "text");
  return text != nullptr ? *text : Compact(part);
}

}  // namespace

bool HasRole(const ordered_json& message, std::string_view role) {
  const std::string* const own = StringMember(message, "role");
  return own != nullptr && *own == role;
}

std::string ContentText(const ordered_json& message) {
  if (const std::string* const text = StringMember(message, "content")) return *text;
  if (!message.is_object() || !message.contains("content")) return {};
  const ordered_json& content = message["content"];
  if (content.is_null()) return {};
  if (!content.is_array()) return Compact(content);
  std::string text;
  for (const ordered_json& part : content) {
    if (!text.empty()) text += '\n';
    text += PartText(part);
  }
  return text;
}

}  // namespace kvcache::cli
