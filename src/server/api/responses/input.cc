#include "server/api/responses/input.h"

#include <cstddef>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "server/output/stamps.h"
#include "server/request/messages.h"

namespace kvcache::server::responses {
namespace {

// Others' encrypted thoughts do not begin like this.
constexpr std::string_view kSeal = "kvcache-thoughts:";
constexpr std::string_view kSummarySeal = "kvcache-summary:";

// Appends items one by one.
class Items {
 public:
  Items(const FindItem& find, Json& messages) : find_(find), messages_(messages) {}

  Status Add(const Json& item, const std::string& name) {
    if (!item.is_object()) return InvalidArgument(StrCat(name, " must be an object"));
    const Json given = item.value("type", Json());
    compacted_ = compacted_ || given == "compaction";
    if (!given.is_null() && !given.is_string()) {
      return InvalidArgument(StrCat("the 'type' of ", name, " must be a string"));
    }
    // Messages need no type.
    const std::string type = given.is_string()       ? given.get<std::string>()
                             : item.contains("role") ? "message"
                                                     : "";
    if (type.empty()) return InvalidArgument(StrCat(name, " has neither a 'type' nor a 'role'"));
    if (type == "message") return AddMessage(item, name);
    if (type == "function_call") return AddCall(item, name);
    if (type == "function_call_output") return AddOutput(item, name);
    if (type == "reasoning") return AddThoughts(item, name);
    if (type == "item_reference") return AddReference(item, name);
    if (type == "compaction") return AddSummary(item, name);
    return Status::Ok();
  }

  // Makes one message of the user's messages between two answers, if answers were left out: some templates want that.
  void JoinUsers() {
    if (!compacted_) return;
    Json joined = Json::array();
    for (Json& message : messages_) {
      const bool is_next =
          !joined.empty() && joined.back()["role"] == "user" && message["role"] == "user";
      if (!is_next) {
        joined.push_back(std::move(message));
        continue;
      }
      auto& text = joined.back()["content"].get_ref<std::string&>();
      text += "\n\n" + message["content"].get<std::string>();
    }
    messages_ = std::move(joined);
  }

 private:
  static Result<std::string> TextOf(const Json& item, const char* key, const std::string& name) {
    const auto found = item.find(key);
    if (found != item.end() && found->is_string()) return found->get<std::string>();
    return InvalidArgument(StrCat(name, " has no '", key, "' that is a string"));
  }

  Status AddMessage(const Json& item, const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(std::string role, TextOf(item, "role", name));
    if (role == "developer") role = "system";
    if (role != "user" && role != "assistant" && role != "system") {
      return InvalidArgument(StrCat("the 'role' of ", name, " is unknown: ", Quoted(role)));
    }
    const Json content = item.value("content", Json());
    if (content.is_null()) return InvalidArgument(StrCat(name, " has no 'content'"));
    auto text = ContentText(content);
    if (!text.ok()) {
      return InvalidArgument(StrCat("the 'content' of ", name, " ", text.status().message()));
    }
    if (role == "assistant" && open_ && !said_) {
      messages_.back()["content"] = std::move(*text);
    } else {
      messages_.push_back({{"role", role}, {"content", std::move(*text)}});
    }
    open_ = said_ = role == "assistant";
    return Status::Ok();
  }

  Status AddCall(const Json& item, const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string id, TextOf(item, "call_id", name));
    KVCACHE_ASSIGN_OR_RETURN(const std::string tool, TextOf(item, "name", name));
    const Json arguments = item.value("arguments", Json());
    if (!arguments.is_string() && !arguments.is_object() && !arguments.is_null()) {
      return InvalidArgument(StrCat("the 'arguments' of ", name, " must be a string or an object"));
    }
    Open()["tool_calls"].push_back({{"id", id},
                                    {"type", "function"},
                                    {"function", {{"name", tool}, {"arguments", arguments}}}});
    said_ = true;
    return Status::Ok();
  }

  Status AddOutput(const Json& item, const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string id, TextOf(item, "call_id", name));
    if (!item.contains("output")) return InvalidArgument(StrCat(name, " has no 'output'"));
    auto text = ContentText(item["output"]);
    if (!text.ok())
      return InvalidArgument(StrCat("the 'output' of ", name, " ", text.status().message()));
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(*text)}});
    open_ = false;
    return Status::Ok();
  }

  // Summaries are not what the model thought; they are skipped.
  Status AddThoughts(const Json& item, const std::string& name) {
    std::string thoughts;
    const Json content = item.value("content", Json());
    if (!content.is_null() && !content.is_array()) {
      return InvalidArgument(StrCat("the 'content' of ", name, " must be an array"));
    }
    for (const Json& part : content) {
      if (!part.is_object())
        return InvalidArgument(StrCat("the 'content' of ", name, " has no objects"));
      if (part.value("type", Json()) != "reasoning_text") continue;
      KVCACHE_ASSIGN_OR_RETURN(const std::string text, TextOf(part, "text", name));
      thoughts += text;
    }
    const Json sealed = item.value("encrypted_content", Json());
    if (!sealed.is_null() && !sealed.is_string()) {
      return InvalidArgument(StrCat("the 'encrypted_content' of ", name, " must be a string"));
    }
    if (thoughts.empty() && sealed.is_string()) {
      const auto& text = sealed.get_ref<const std::string&>();
      if (text.starts_with(kSeal)) thoughts = text.substr(kSeal.size());
    }
    if (thoughts.empty()) return Status::Ok();
    if (said_) open_ = false;
    Open()["reasoning_content"] = std::move(thoughts);
    return Status::Ok();
  }

  // The model wrote the summary. Others' summaries cannot be read; they are skipped.
  Status AddSummary(const Json& item, const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string sealed, TextOf(item, "encrypted_content", name));
    if (!sealed.starts_with(kSummarySeal)) return Status::Ok();
    messages_.push_back({{"role", "assistant"}, {"content", sealed.substr(kSummarySeal.size())}});
    open_ = false;
    return Status::Ok();
  }

  Status AddReference(const Json& item, const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string id, TextOf(item, "id", name));
    const auto found = find_(id);
    if (!found) {
      return {StatusCode::kNotFound,
              StrCat(name, " refers to the item ", Quoted(id), ", which is not stored")};
    }
    return Add(*found, name);
  }

  // Returns the message of the answer that the items are of.
  Json& Open() {
    if (!std::exchange(open_, true)) {
      messages_.push_back({{"role", "assistant"}, {"content", ""}});
      said_ = false;
    }
    return messages_.back();
  }

  const FindItem& find_;
  Json& messages_;
  bool open_ = false;       // whether the last message is an answer that goes on
  bool said_ = false;       // whether it has a text or calls
  bool compacted_ = false;  // whether a summary stands for answers
};

// Returns what the ids of a type's items begin with.
std::string_view IdPrefix(const Json& type) {
  if (type == "message") return "msg_";
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  if (type == "reasoning") return "rs_";
  return type == "compaction" ? "cmp_" : "item_";
}

// Gives an item its type, its id and, if it is a message, an array of parts.
Json WholeItem(const Json& given) {
  Json item = {{"type", "message"}, {"id", nullptr}, {"status", "completed"}};
  item.update(given);
  if (item["type"].is_null()) item["type"] = "message";
  if (!item["id"].is_string()) item["id"] = NewId(IdPrefix(item["type"]));
  if (item["type"] != "message" || !item["content"].is_string()) return item;
  const bool output = item["role"] == "assistant";
  Json part = {{"type", output ? "output_text" : "input_text"}, {"text", item["content"]}};
  if (output) part["annotations"] = Json::array();
  item["content"] = Json::array({std::move(part)});
  return item;
}

}  // namespace

Status AppendItems(const Json& input, const FindItem& find, Json& messages) {
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
    return Status::Ok();
  }
  if (!input.is_array()) return InvalidArgument("'input' must be a string or an array of items");
  Items items(find, messages);
  for (std::size_t i = 0; i < input.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(items.Add(input[i], StrCat("'input[", i, "]'")));
  }
  items.JoinUsers();
  return Status::Ok();
}

Json WholeItems(const Json& input, const FindItem& find) {
  if (input.is_string()) {
    return Json::array({WholeItem({{"role", "user"}, {"content", input}})});
  }
  Json items = Json::array();
  for (const Json& item : input) {
    const bool refers = item.value("type", Json()) == "item_reference";
    items.push_back(WholeItem(refers ? find(item["id"].get<std::string>()).value_or(item) : item));
  }
  return items;
}

std::string SealThoughts(std::string_view thoughts) {
  return StrCat(kSeal, thoughts);
}

std::string SealSummary(std::string_view summary) {
  return StrCat(kSummarySeal, summary);
}

}  // namespace kvcache::server::responses
