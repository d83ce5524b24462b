#include "app/terminal/typed_line.h"

#include <algorithm>

namespace kvcache::app {

void TypedLine::AppendTyped(std::string_view typed) {
  text += typed;
  if (has_paste) typed_tail += typed.size();
}

void TypedLine::AppendPasted(std::string_view pasted) {
  NotePaste();
  typed_tail = 0;
  text += pasted;
}

void TypedLine::NotePaste() {
  if (has_paste) return;
  has_paste = true;
  typed_head = text.size();
}

void TypedLine::RemoveLast(std::size_t bytes) {
  text.resize(text.size() - bytes);
  if (!has_paste) return;
  typed_tail -= std::min(typed_tail, bytes);
  if (text.size() > typed_head) return;
  has_paste = false;  // nothing of the paste is left
}

bool TypedLine::BeginsTyped(std::string_view mark) const {
  return text.starts_with(mark) && (!has_paste || typed_head >= mark.size());
}

bool TypedLine::EndsTyped(std::string_view mark) const {
  return text.ends_with(mark) && (!has_paste || typed_tail >= mark.size());
}

bool TypedLine::MayBeCommand() const {
  if (!has_paste) return true;
  const std::string_view head = std::string_view(text).substr(0, typed_head);
  return head.starts_with('/') && head.find_first_of(" \t\n") != std::string_view::npos;
}

std::string PastedText(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\r') {
      text += '\n';
      if (i + 1 < bytes.size() && bytes[i + 1] == '\n') ++i;
    } else {
      text += bytes[i];
    }
  }
  return text;
}

}  // namespace kvcache::app
