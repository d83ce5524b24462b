#include "server/request/volatile_lines.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::server {
namespace {

constexpr std::size_t kMaxPatternsBytes = std::size_t{1} << 20;
constexpr std::string_view kBlanks = " \t\r";

std::string_view Trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

std::string RoleOf(const Json& message) {
  const auto found = message.find("role");
  return found != message.end() && found->is_string() ? found->get<std::string>() : "";
}

bool IsSystem(const std::string& role) {
  return role == "system" || role == "developer";
}

// Returns the content of a message or of a call's result. Null: what the model wrote, and what is unknown.
Json* ContentOf(Json& message) {
  if (!message.is_object()) return nullptr;
  const std::string role = RoleOf(message);
  const Json type = message.value("type", Json("message"));
  const bool is_result = type == "function_call_output";
  const bool is_message = type == "message" && (IsSystem(role) || role == "user" || role == "tool");
  if (!is_result && !is_message) return nullptr;
  const auto found = message.find(is_result ? "output" : "content");
  return found != message.end() ? &*found : nullptr;
}

// Returns the content to which lines are moved: that of the last message that is neither an answer nor a system
// message. Null: there is none.
Json* EndOf(Json& list) {
  if (list.is_string()) return &list;
  for (auto message = list.rbegin(); message != list.rend(); ++message) {
    Json* const content = ContentOf(*message);
    if (content == nullptr || IsSystem(RoleOf(*message))) continue;
    return content->is_string() || content->is_array() ? content : nullptr;
  }
  return nullptr;
}

// Appends a text to a content. `part_type` is the type of a new part.
void Append(Json& content, const std::string& text, const char* part_type) {
  if (content.is_string()) {
    auto& own = content.get_ref<std::string&>();
    own += own.empty() || own.ends_with('\n') ? text : "\n" + text;
  } else {
    content.push_back({{"type", part_type}, {"text", "\n" + text}});
  }
}

}  // namespace

bool MatchesPattern(std::string_view line, std::string_view pattern) {
  std::size_t at = 0;
  std::size_t in_pattern = 0;
  std::size_t star = pattern.npos;  // the last one, and where what it stands for ends
  std::size_t star_end = 0;
  while (at < line.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      star_end = at;
    } else if (in_pattern < pattern.size() && pattern[in_pattern] == line[at]) {
      ++in_pattern;
      ++at;
    } else if (star != pattern.npos) {
      in_pattern = star + 1;
      at = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == pattern.npos;
}

Result<VolatileLines> VolatileLines::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(StatusCode::kIo, StrCat(path, ": ", std::strerror(errno)));
  std::string text(kMaxPatternsBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Status(StatusCode::kIo, StrCat(path, ": it cannot be read"));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxPatternsBytes) {
    return InvalidArgument(StrCat(path, ": it has more than ", kMaxPatternsBytes, " bytes"));
  }
  return Parse(text, path);
}

Result<VolatileLines> VolatileLines::Parse(std::string_view text, std::string_view place) {
  VolatileLines lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
    const std::string_view pattern = Trimmed(line.substr(word.size()));
    const auto wrong = [&](const char* rule) {
      return InvalidArgument(StrCat(place, ", line ", number, ": ", rule));
    };
    if (word != "remove" && word != "move") return wrong("must begin with remove or move");
    if (pattern.find_first_not_of("* ") == pattern.npos) {
      return wrong("needs a pattern with other characters than *");
    }
    lines.rules_.push_back(
        {word == "move" ? Action::kMove : Action::kRemove, std::string(pattern)});
  }
  if (!lines.empty()) return lines;
  return InvalidArgument(StrCat(place, ": there is no pattern in it"));
}

bool VolatileLines::TakeFrom(std::string& text, std::vector<std::string>* moved,
                             VolatileCounts& counts) const {
  std::string kept;
  bool any = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = Trimmed(std::string_view(text).substr(begin, end - begin));
    const std::size_t next = std::min(end + 1, text.size());
    const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& each) {
      return (moved != nullptr || each.action == Action::kRemove) &&
             MatchesPattern(line, each.pattern);
    });
    if (rule == rules_.end()) {
      kept.append(text, begin, next - begin);
    } else {
      any = true;
      if (rule->action == Action::kMove) {
        moved->emplace_back(line);
      } else {
        ++counts.removed;
      }
    }
    begin = next;
  }
  if (!any) return false;
  // A line at the end leaves no line break behind.
  if (!text.ends_with('\n') && kept.ends_with('\n')) kept.pop_back();
  text = std::move(kept);
  return text.empty();
}

void VolatileLines::TakeFromContent(Json& content, std::vector<std::string>* moved,
                                    VolatileCounts& counts) const {
  if (content.is_string()) {
    (void)TakeFrom(content.get_ref<std::string&>(), moved, counts);
    return;
  }
  if (!content.is_array()) return;
  for (std::size_t i = 0; i < content.size();) {
    Json& part = content[i];
    bool is_empty = false;
    if (part.is_object() && part.contains("text") && part["text"].is_string()) {
      is_empty = TakeFrom(part["text"].get_ref<std::string&>(), moved, counts);
    } else if (part.is_object() && part.contains("content")) {  // the result of a tool
      TakeFromContent(part["content"], nullptr, counts);
    }
    // A part that has a mark of the cache stays.
    if (is_empty && content.size() > 1 && !part.contains("cache_control")) {
      content.erase(i);
    } else {
      ++i;
    }
  }
}

VolatileCounts VolatileLines::Apply(Json& body, PromptUse prompt_use) const {
  VolatileCounts counts;
  if (empty() || !body.is_object()) return counts;
  Json* list = nullptr;
  const char* part_type = "text";
  for (const char* name : {"prompt", "messages", "input"}) {
    const auto found = body.find(name);
    if (found == body.end() || !(found->is_string() || found->is_array())) continue;
    const bool is_prompt = name == std::string_view("prompt");
    if (is_prompt && (prompt_use == PromptUse::kRaw || !found->is_string())) continue;
    list = &*found;
    part_type = name == std::string_view("input") ? "input_text" : "text";
  }
  std::vector<std::string> moved;
  // Without an end to go to, lines stay.
  Json* const end = list != nullptr ? EndOf(*list) : nullptr;
  std::vector<std::string>* const may_move = end != nullptr ? &moved : nullptr;
  for (const char* name : {"system", "instructions"}) {
    const auto found = body.find(name);
    if (found != body.end()) TakeFromContent(*found, may_move, counts);
  }
  if (list != nullptr && list->is_string()) TakeFromContent(*list, nullptr, counts);
  if (list != nullptr && list->is_array()) {
    for (Json& message : *list) {
      Json* const content = ContentOf(message);
      if (content == nullptr) continue;
      TakeFromContent(*content, IsSystem(RoleOf(message)) ? may_move : nullptr, counts);
    }
  }
  if (moved.empty()) return counts;
  std::string lines;
  for (const std::string& line : moved) lines += (lines.empty() ? "" : "\n") + line;
  Append(*end, lines, part_type);
  counts.moved = std::ssize(moved);
  return counts;
}

}  // namespace kvcache::server
