#include "app/chat/message_reader.h"

#include <string_view>
#include <utility>

#include "base/strings.h"

namespace kvcache::app {
namespace {

constexpr const char* kPrompt = "> ";
constexpr const char* kMorePrompt = ". ";
constexpr std::string_view kQuotes = "\"\"\"";

// Reads a message between quotes. `first`: its first line, without the quotes.
Message ReadBlock(LineEditor& lines, TypedLine first, std::size_t max_bytes) {
  Message message{LineEnd::kLine, {}, true};
  TypedLine line = std::move(first);
  for (bool begins = true;; begins = false) {
    if (!begins) {
      const LineEnd end = lines.Read(kMorePrompt, line);
      if (end == LineEnd::kEndOfInput) return message;
      if (end != LineEnd::kLine) return {end, {}, false};
    }
    const bool ends = line.EndsTyped(kQuotes);
    if (ends) line.text.resize(line.text.size() - kQuotes.size());
    // A line with nothing but the quotes adds no newline.
    const bool is_bare_mark = line.text.empty() && (begins || ends);
    if (!is_bare_mark) {
      if (!message.text.empty()) message.text += '\n';
      message.text += line.text;
    }
    if (message.text.size() > max_bytes) return {LineEnd::kTooLong, {}, false};
    if (ends) return message;
  }
}

// Reads a message that begins with `line`, and the lines that continue it.
Message ReadLines(LineEditor& lines, TypedLine line, std::size_t max_bytes) {
  Message message;
  message.is_verbatim = line.has_paste && !line.MayBeCommand() && !line.BeginsTyped("//");
  bool goes_on = line.EndsTyped("\\");
  message.text = std::move(line.text);
  while (goes_on && message.text.size() <= max_bytes) {
    message.text.back() = '\n';
    const LineEnd end = lines.Read(kMorePrompt, line);
    if (end == LineEnd::kEndOfInput) break;
    if (end != LineEnd::kLine) return {end, {}, false};
    goes_on = line.EndsTyped("\\");
    message.text += line.text;
  }
  if (message.text.size() > max_bytes) return {LineEnd::kTooLong, {}, false};
  return message;
}

// Returns a line that gives the same message when it is typed.
std::string AsTyped(const Message& message) {
  const std::string& text = message.text;
  const bool has_meaning =
      text.starts_with('/') || text.starts_with(kQuotes) || text.ends_with('\\');
  if (!message.is_verbatim || !has_meaning) return text;
  return StrCat(kQuotes, text, kQuotes);
}

}  // namespace

Message ReadMessage(LineEditor& lines, std::size_t max_bytes) {
  TypedLine line;
  const LineEnd end = lines.Read(kPrompt, line);
  if (end != LineEnd::kLine) return {end, {}, false};
  Message message;
  if (line.BeginsTyped(kQuotes)) {
    line.text.erase(0, kQuotes.size());
    if (line.has_paste) line.typed_head -= kQuotes.size();
    message = ReadBlock(lines, std::move(line), max_bytes);
  } else {
    message = ReadLines(lines, std::move(line), max_bytes);
  }
  if (message.end == LineEnd::kLine) lines.Remember(AsTyped(message));
  return message;
}

}  // namespace kvcache::app
