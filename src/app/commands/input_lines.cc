#include "app/commands/input_lines.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "json/json_text.h"

namespace kvcache::app {
namespace {

std::optional<std::string> TextOfJson(const std::string& line) {
  const auto json = ParseJson(line);
  if (!json.ok()) return std::nullopt;
  if (json->is_string()) return json->get<std::string>();
  const bool has_text = json->is_object() && json->contains("text") && (*json)["text"].is_string();
  return has_text ? std::optional((*json)["text"].get<std::string>()) : std::nullopt;
}

}  // namespace

Result<std::vector<InputLine>> ReadInputLines(const std::string& path, LineForm form) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const std::string name = path == "-" ? "standard input" : path;
  std::vector<InputLine> lines;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    if (form == LineForm::kJson) {
      auto read = TextOfJson(line);
      if (!read) {
        return InvalidArgument(
            StrCat(name, ":", number, ": must be a JSON string, or an object with a \"text\""));
      }
      line = std::move(*read);
    }
    lines.push_back({std::move(line), number});
  }
  if (lines.empty()) return InvalidArgument(StrCat(name, " has no text"));
  return lines;
}

}  // namespace kvcache::app
