#include "kvcache_engine/conversation.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/chat/conversation_text.h"
#include "json/json_text.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

constexpr int kVersion = 1;

Status Wrong(std::string message) {
  return InvalidArgument(std::move(message));
}

std::string OneLineJson(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Status CheckVersion(const ordered_json& file) {
  const auto version = file.find("version");
  if (version == file.end() || *version == kVersion) return Status::Ok();
  return Wrong(StrCat("\"version\" is ", OneLineJson(*version), "; this program reads ", kVersion));
}

// The content of a message is a string, a list of parts, or nothing.
Status CheckMessage(const ordered_json& message, std::size_t number) {
  if (!message.is_object()) {
    return Wrong(StrCat("message ", number, " is not an object but ", message.type_name()));
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) {
    return Wrong(StrCat("message ", number, " has no \"role\" that is a string"));
  }
  const auto content = message.find("content");
  const bool readable =
      content == message.end() || content->is_string() || content->is_null() || content->is_array();
  if (readable) return Status::Ok();
  return Wrong(StrCat("the \"content\" of message ", number, " is ", content->type_name(),
                      "; it is a string, an array of parts or null"));
}

Status CheckMessages(const ordered_json& messages) {
  if (!messages.is_array()) {
    return Wrong(StrCat("\"messages\" is not an array but ", messages.type_name()));
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(CheckMessage(messages[i], i + 1));
  }
  return Status::Ok();
}

Status CheckTools(const ordered_json& tools) {
  if (tools.is_null()) return Status::Ok();
  if (!tools.is_array()) {
    return Wrong(StrCat("tools are an array of objects, not ", tools.type_name()));
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (tools[i].is_object()) continue;
    return Wrong(StrCat("tool ", i + 1, " is not an object (with \"type\" and \"function\") but ",
                        tools[i].type_name()));
  }
  return Status::Ok();
}

// Returns the member if it is a string, else null.
const std::string* StringMember(const ordered_json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

std::string PartText(const ordered_json& part) {
  if (const auto* text = part.get_ptr<const std::string*>()) return *text;
  const std::string* const type = StringMember(part, "type");
  if (type != nullptr && *type == "image") return "[picture]";
  const std::string* const text = StringMember(part, "text");
  return text != nullptr ? *text : OneLineJson(part);
}

ordered_json Message(std::string_view role, std::string_view content) {
  return {{"role", role}, {"content", content}};
}

}  // namespace

std::string ConversationText(const ChatInput& input) {
  std::string text = StrCat("{\"version\": ", kVersion, ",\n \"messages\": [");
  std::string_view separator = "\n  ";
  for (const ordered_json& message : input.messages) {
    text += StrCat(separator, OneLineJson(message));
    separator = ",\n  ";
  }
  return StrCat(text, "],\n \"tools\": ", OneLineJson(input.tools),
                ",\n \"variables\": ", OneLineJson(input.variables), "}\n");
}

Status ReadConversation(std::string_view text, ChatInput& input) {
  KVCACHE_ASSIGN_OR_RETURN(ordered_json file, ParseJson(text));
  if (file.is_array()) file = ordered_json::object({{"messages", std::move(file)}});
  if (!file.is_object() || !file.contains("messages")) {
    return Wrong("expected an object with \"messages\", or an array of messages");
  }
  ordered_json tools = file.contains("tools") ? file["tools"] : input.tools;
  ordered_json variables = file.contains("variables") ? file["variables"] : input.variables;
  KVCACHE_RETURN_IF_ERROR(CheckVersion(file));
  KVCACHE_RETURN_IF_ERROR(CheckMessages(file["messages"]));
  KVCACHE_RETURN_IF_ERROR(CheckTools(tools));
  if (!variables.is_object()) {
    return Wrong(StrCat("\"variables\" is not an object but ", variables.type_name()));
  }
  input.messages = std::move(file["messages"]);
  input.tools = std::move(tools);
  input.variables = std::move(variables);
  return Status::Ok();
}

Result<ordered_json> ReadTools(std::string_view text) {
  KVCACHE_ASSIGN_OR_RETURN(ordered_json tools, ParseJson(text));
  if (tools.is_object()) tools = ordered_json::array({std::move(tools)});
  KVCACHE_RETURN_IF_ERROR(CheckTools(tools));
  if (tools.is_null()) return Wrong("expected an array of tools, not null");
  return tools;
}

Conversation::Conversation() : input_(std::make_unique<ChatInput>()) {}
Conversation::~Conversation() = default;
Conversation::Conversation(Conversation&&) noexcept = default;
Conversation& Conversation::operator=(Conversation&&) noexcept = default;

Conversation Conversation::Copy() const {
  Conversation copy;
  *copy.input_ = *input_;
  copy.pictures_ = pictures_;
  return copy;
}

Status Conversation::ReadJson(std::string_view json) {
  return ReadConversation(json, *input_);
}

std::string Conversation::ToJson() const {
  return ConversationText(*input_);
}

std::size_t Conversation::size() const {
  return input_->messages.size();
}

bool Conversation::HasRole(std::size_t index, std::string_view role) const {
  const std::string* const own = StringMember(input_->messages[index], "role");
  return own != nullptr && *own == role;
}

std::string Conversation::ContentText(std::size_t index) const {
  const ordered_json& message = input_->messages[index];
  if (const std::string* const text = StringMember(message, "content")) return *text;
  if (!message.is_object() || !message.contains("content")) return {};
  const ordered_json& content = message["content"];
  if (content.is_null()) return {};
  if (!content.is_array()) return OneLineJson(content);
  std::string text;
  for (const ordered_json& part : content) {
    if (!text.empty()) text += '\n';
    text += PartText(part);
  }
  return text;
}

void Conversation::Add(std::string_view role, std::string_view content) {
  input_->messages.push_back(Message(role, content));
}

void Conversation::Add(std::string_view role, std::string_view content,
                       std::vector<PicturePtr> pictures) {
  if (pictures.empty()) return Add(role, content);
  ordered_json parts = ordered_json::array();
  for (PicturePtr& picture : pictures) {
    parts.push_back({{"type", "image"}, {"picture", picture->name()}});
    pictures_.push_back(std::move(picture));
  }
  parts.push_back({{"type", "text"}, {"text", content}});
  input_->messages.push_back({{"role", role}, {"content", std::move(parts)}});
}

Result<std::vector<PicturePtr>> Conversation::Pictures() const {
  std::vector<PicturePtr> pictures;
  for (std::size_t i = 0; i < size(); ++i) {
    const auto content = input_->messages[i].find("content");
    if (content == input_->messages[i].end() || !content->is_array()) continue;
    for (const ordered_json& part : *content) {
      const std::string* const type = StringMember(part, "type");
      if (type == nullptr || *type != "image") continue;
      const std::string* const name = StringMember(part, "picture");
      const auto found = std::find_if(
          pictures_.begin(), pictures_.end(),
          [&](const PicturePtr& picture) { return name != nullptr && picture->name() == *name; });
      if (found == pictures_.end()) {
        return Wrong(StrCat("the picture of message ", i + 1, " is not there: add it again"));
      }
      pictures.push_back(*found);
    }
  }
  return pictures;
}

void Conversation::AddToolResult(std::string_view id, std::string_view name,
                                 std::string_view text) {
  input_->messages.push_back(
      {{"role", "tool"}, {"tool_call_id", id}, {"name", name}, {"content", text}});
}

void Conversation::Remove(std::size_t begin, std::size_t end) {
  const auto first = input_->messages.begin();
  input_->messages.erase(first + static_cast<std::ptrdiff_t>(begin),
                         first + static_cast<std::ptrdiff_t>(end));
}

Conversation Conversation::CutTail(std::size_t begin) {
  Conversation tail;
  for (std::size_t i = begin; i < size(); ++i) {
    tail.input_->messages.push_back(std::move(input_->messages[i]));
  }
  tail.pictures_ = pictures_;
  Remove(begin, size());
  return tail;
}

void Conversation::Append(Conversation tail) {
  for (ordered_json& message : tail.input_->messages) {
    input_->messages.push_back(std::move(message));
  }
  std::move(tail.pictures_.begin(), tail.pictures_.end(), std::back_inserter(pictures_));
}

void Conversation::SetSystem(std::string_view content) {
  ordered_json& messages = input_->messages;
  if (!HasSystem()) messages.insert(messages.begin(), ordered_json::object());
  messages.front() = Message("system", content);
}

Status Conversation::SetTools(std::string_view json) {
  KVCACHE_ASSIGN_OR_RETURN(input_->tools, ReadTools(json));
  return Status::Ok();
}

bool Conversation::HasTools() const {
  return !input_->tools.is_null();
}

Status Conversation::SetVariable(const std::string& name, std::string_view value) {
  auto parsed = ParseJson(value);
  if (parsed.status().code() == StatusCode::kUnsupported) return std::move(parsed).TakeStatus();
  input_->variables[name] = parsed.ok() ? std::move(*parsed) : ordered_json(value);
  return Status::Ok();
}

std::vector<std::string> Conversation::variables() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : input_->variables.items()) names.push_back(name);
  return names;
}

}  // namespace kvcache
