#include "chat_template/system_messages.h"

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

Json Message(const char* role, const std::string& text) {
  return {{"role", role}, {"content", text}};
}

using Messages = std::vector<Json>;

std::optional<std::string> TextOf(const ChatTemplate& chat_template, const Messages& messages) {
  ChatInput input;
  input.now = std::tm{};  // the same for all
  for (const Json& message : messages) input.messages.push_back(message);
  auto text = chat_template.Render(input, kProbeLimits);
  return text.ok() ? std::optional(std::move(text->text)) : std::nullopt;
}

// Returns whether the template writes the messages `added` between those before and those after them, and
// writes the beginning as it is without them.
bool TakesBetween(const ChatTemplate& chat_template, const Messages& before, const Messages& added,
                  const Messages& after) {
  Messages all = before;
  all.insert(all.end(), added.begin(), added.end());
  all.insert(all.end(), after.begin(), after.end());
  const auto text = TextOf(chat_template, all);
  if (!text) return false;
  std::size_t at = 0;
  std::size_t begin = 0;  // where the added messages may begin
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string content = all[i]["content"].get<std::string>();
    const std::size_t found = content.empty() ? at : text->find(content, at);
    if (found == std::string::npos) return false;
    at = found + content.size();
    if (i + 1 == before.size()) begin = at;
  }
  if (before.empty()) return true;
  const auto shorter = TextOf(chat_template, before);
  return !shorter || shorter->compare(0, begin, *text, 0, begin) == 0;
}

// Returns the same for messages that end the conversation, and for those that others follow.
bool Takes(const ChatTemplate& chat_template, const Messages& before, const Messages& added,
           const Messages& after) {
  return TakesBetween(chat_template, before, added, {}) &&
         TakesBetween(chat_template, before, added, after);
}

// Returns whether the message has this role, and a content that is a text.
bool IsTextOf(const Json& message, const char* role) {
  return message.is_object() && message.value("role", Json()) == role &&
         message.value("content", Json()).is_string();
}

bool IsSystem(const Json& message) {
  return IsTextOf(message, "system");
}

void AppendText(Json& message, const std::string& text) {
  auto& content = message["content"].get_ref<std::string&>();
  content += (content.empty() || text.empty() ? "" : "\n\n") + text;
}

void PrependText(Json& message, std::string text) {
  auto& content = message["content"].get_ref<std::string&>();
  if (!content.empty() && !text.empty()) text += "\n\n";
  content.insert(0, text);
}

// Builds the messages that the template gets.
class Placement {
 public:
  Placement(const SystemPlaces& places, Json& given) : places_(places), given_(given) {}

  Json Take() {
    for (std::size_t i = 0; i < given_.size();) {
      std::size_t end = i;
      while (end < given_.size() && IsSystem(given_[end])) ++end;
      if (end > i) {
        AddSystems(i, end);
        i = end;
      } else {
        AddOther(std::move(given_[i++]));
      }
    }
    return std::move(placed_);
  }

 private:
  // Adds system messages that follow each other.
  void AddSystems(std::size_t begin, std::size_t end) {
    if (begin == 0 && places_.first) {
      placed_.push_back(given_[0]);
      for (std::size_t i = 1; i < end; ++i) {
        if (places_.more_first) {
          placed_.push_back(given_[i]);
        } else {
          AppendText(placed_.back(), given_[i]["content"].get<std::string>());
        }
      }
      return;
    }
    if (begin > 0 && TakesHere()) {
      for (std::size_t i = begin; i < end; ++i) placed_.push_back(given_[i]);
      return;
    }
    Json joined = Message("user", "");
    for (std::size_t i = begin; i < end; ++i) {
      AppendText(joined, given_[i]["content"].get<std::string>());
    }
    AddToTurn(std::move(joined), end < given_.size() ? &given_[end] : nullptr);
  }

  bool TakesHere() const {
    const Json& last = placed_.back();
    const Json role = last.is_object() ? last.value("role", Json()) : Json();
    if (role == "tool") return places_.after_result;
    return role == "assistant" ? places_.after_answer : places_.after_user;
  }

  // Adds a text to the user's turn at this place. `next` is the message behind it, or null.
  void AddToTurn(Json message, Json* next) {
    const std::string text = message["content"].get<std::string>();
    Json* const last = placed_.empty() ? nullptr : &placed_.back();
    const auto is = [](const Json* other, const char* role) {
      return other != nullptr && IsTextOf(*other, role);
    };
    const bool joins_result = is(last, "tool") && !places_.user_after_result;
    if (is(last, "user")) {
      AppendText(*last, text);
      joins_ = true;
    } else if (is(next, "user") || (is(next, "tool") && !joins_result)) {
      PrependText(*next, text);
    } else if (joins_result) {
      AppendText(*last, text);
    } else {
      placed_.push_back(std::move(message));
    }
  }

  void AddOther(Json message) {
    const bool joins = std::exchange(joins_, false);
    if (joins && IsTextOf(message, "user")) {
      AppendText(placed_.back(), message["content"].get<std::string>());
    } else {
      placed_.push_back(std::move(message));
    }
  }

  const SystemPlaces& places_;
  Json& given_;
  Json placed_ = Json::array();
  bool joins_ = false;  // the last message has a text that a next one of the user joins
};

}  // namespace

SystemPlaces FindSystemPlaces(const ChatTemplate& chat_template) {
  // No template writes these texts itself.
  const Json system = Message("system", "zqsystem");
  const Json next_system = Message("system", "zqnextsystem");
  const Json user = Message("user", "zquser");
  const Json next_user = Message("user", "zqnextuser");
  const Json answer = Message("assistant", "zqanswer");
  // Some templates want ids of nine characters, and results only after calls.
  Json call = Message("assistant", "");
  call["tool_calls"] =
      Json::array({{{"id", "callprobe"},
                    {"type", "function"},
                    {"function", {{"name", "zqtool"}, {"arguments", {{"zqkey", "zqvalue"}}}}}}});
  Json result = Message("tool", "zqresult");
  result["tool_call_id"] = "callprobe";
  result["name"] = "zqtool";
  const auto takes = [&](const Messages& before, const Messages& added, const Messages& after) {
    return Takes(chat_template, before, added, after);
  };
  // A template may write the first system message anywhere, also at the end.
  const auto first = TextOf(chat_template, {system, user});
  const bool takes_none = !first || first->find("zqsystem") == std::string::npos;
  return {.first = !takes_none || !TextOf(chat_template, {user}),
          .more_first = TakesBetween(chat_template, {}, {system, next_system}, {user}),
          .after_user = takes({user}, {system}, {answer, next_user}),
          .after_answer = takes({user, answer}, {system}, {next_user}),
          .after_result = takes({user, call, result}, {system}, {answer, next_user}),
          .user_after_result = takes({user, call, result}, {next_user}, {answer}) ||
                               !TakesBetween(chat_template, {user, call}, {result}, {answer})};
}

void PlaceSystemMessages(const SystemPlaces& places, Json& messages) {
  if (std::none_of(messages.begin(), messages.end(), IsSystem)) return;
  messages = Placement(places, messages).Take();
}

}  // namespace kvcache
