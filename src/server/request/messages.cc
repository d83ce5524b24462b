#include "server/request/messages.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "server/request/pictures.h"

namespace kvcache::server {

Result<std::string> ContentText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (content.is_null()) return std::string();
  const Status wrong = InvalidArgument("must be a string or an array of text parts");
  if (!content.is_array()) return wrong;
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) return wrong;
    const auto& type = part["type"].get_ref<const std::string&>();
    if (type != "text" && type != "input_text" && type != "output_text") {
      return InvalidArgument(StrCat("has a part of type ", Quoted(type), "; only text is supported",
                                    PictureKind(type).empty() ? "" : "; " + IgnoreImagesHint()));
    }
    if (!part.contains("text") || !part["text"].is_string()) return wrong;
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

namespace {

// Some APIs have thoughts among the parts of a content. Returns them, joined, and removes their parts.
std::string TakeThoughts(Json& content) {
  std::string thoughts;
  if (!content.is_array()) return thoughts;
  Json others = Json::array();
  for (Json& part : content) {
    const Json type = part.is_object() ? part.value("type", Json()) : Json();
    if (type != "thinking" && type != "reasoning") {
      others.push_back(std::move(part));
      continue;
    }
    const auto text = ContentText(part.value(type == "thinking" ? "thinking" : "text", Json()));
    if (text.ok()) thoughts += *text;
  }
  content = std::move(others);
  return thoughts;
}

// APIs name thoughts differently; templates look for the first of these names.
void NameThoughts(Json& message) {
  if (const auto content = message.find("content"); content != message.end()) {
    const std::string thoughts = TakeThoughts(*content);
    if (!thoughts.empty() && !message.contains("thinking")) message["thinking"] = thoughts;
  }
  for (const char* name : {"thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (message.contains("reasoning_content") || found == message.end()) continue;
    if (found->is_string()) message["reasoning_content"] = Json(*found);
  }
}

// Checks calls, and removes an empty list of them.
Status ReadCalls(Json& message, const std::string& name) {
  const auto found = message.find("tool_calls");
  if (found == message.end()) return Status::Ok();
  if (found->is_null() || (found->is_array() && found->empty())) {
    message.erase("tool_calls");
    return Status::Ok();
  }
  Status wrong =
      InvalidArgument(StrCat("the 'tool_calls' of ", name,
                             " must be an array of objects with a 'function' that has a 'name'"));
  if (!found->is_array()) return wrong;
  for (const Json& call : *found) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return wrong;
    }
    const Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string()) return wrong;
  }
  return Status::Ok();
}

}  // namespace

Result<Json> ReadMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return InvalidArgument("'messages' must be an array with at least one message");
  }
  Json read = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& given = messages[i];
    const std::string name = StrCat("'messages[", i, "]'");
    if (!given.is_object()) return InvalidArgument(StrCat(name, " must be an object"));
    if (!given.contains("role") || !given["role"].is_string()) {
      return InvalidArgument(StrCat(name, " has no 'role' that is a string"));
    }
    Json message = given;
    const auto role = given["role"].get<std::string>();
    const bool known = role == "system" || role == "developer" || role == "user" ||
                       role == "assistant" || role == "tool";
    if (!known) return InvalidArgument(StrCat("the role of ", name, " is unknown: ", Quoted(role)));
    if (role == "developer") message["role"] = "system";
    if (given.contains("images") && !given["images"].empty()) {
      return InvalidArgument(StrCat("the 'images' of ", name,
                                    " are not supported: the model reads text only; ",
                                    IgnoreImagesHint()));
    }
    const bool may_be_empty = role == "assistant" || role == "tool";
    if ((!given.contains("content") || given["content"].is_null()) && !may_be_empty) {
      return InvalidArgument(StrCat(name, " has no 'content'"));
    }
    if (role == "assistant") NameThoughts(message);
    auto text = ContentText(message.value("content", Json()));
    if (!text.ok())
      return InvalidArgument(StrCat("the 'content' of ", name, " ", text.status().message()));
    message["content"] = std::move(*text);
    KVCACHE_RETURN_IF_ERROR(ReadCalls(message, name));
    read.push_back(std::move(message));
  }
  return read;
}

}  // namespace kvcache::server
