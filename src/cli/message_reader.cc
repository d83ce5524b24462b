#include "cli/message_reader.h"

namespace kvcache::cli {
namespace {

constexpr const char* kPrompt = "> ";
constexpr const char* kMorePrompt = ". ";
constexpr std::string_view kQuotes = "\"\"\"";

Message ReadBlock(LineEditor& lines, std::string first) {
  Message message{LineEnd::kLine, {}, true};
  std::string line = std::move(first);
  for (bool begins = true;; begins = false) {
    if (!begins) {
      const LineEnd end = lines.Read(kMorePrompt, line);
      if (end == LineEnd::kInterrupted) return {end, {}, false};
      if (end == LineEnd::kEndOfInput) return message;
    }
    const bool ends = line.ends_with(kQuotes);
    if (ends) line.resize(line.size() - kQuotes.size());
    // A line with nothing but the quotes adds no newline.
    const bool is_bare_mark = line.empty() && (begins || ends);
    if (!is_bare_mark) {
      if (!message.text.empty()) message.text += '\n';
      message.text += line;
    }
    if (ends) return message;
  }
}

}  // namespace

Message ReadMessage(LineEditor& lines) {
  Message message;
  std::string line;
  message.end = lines.Read(kPrompt, line);
  if (message.end != LineEnd::kLine) return message;
  if (line.starts_with(kQuotes)) {
    message = ReadBlock(lines, line.substr(kQuotes.size()));
  } else {
    message.text = std::move(line);
    while (message.text.ends_with('\\')) {
      message.text.back() = '\n';
      const LineEnd end = lines.Read(kMorePrompt, line);
      if (end == LineEnd::kInterrupted) return {end, {}, false};
      if (end == LineEnd::kEndOfInput) break;
      message.text += line;
    }
  }
  lines.Remember(message.is_block ? std::string(kQuotes) + message.text + std::string(kQuotes)
                                  : message.text);
  return message;
}

}  // namespace kvcache::cli
