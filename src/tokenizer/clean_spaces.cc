#include "tokenizer/clean_spaces.h"

#include <cstddef>
#include <string_view>

namespace kvcache {
namespace {

// Return whether the space before text[i] is removed: by the first pass, and by the last.
bool IsPunctuation(std::string_view text, std::size_t i) {
  return std::string_view("?!.,").find(text[i]) != std::string_view::npos;
}

bool IsContraction(std::string_view text, std::size_t i) {
  if (text[i] != '\'') return false;
  const std::string_view rest = text.substr(i + 1);
  return rest.starts_with('s') || rest.starts_with('m') || rest.starts_with("re") ||
         rest.starts_with("ve");
}

template <typename Predicate>
void RemoveSpacesBefore(std::string* text, Predicate matches) {
  std::size_t kept = 0;
  const std::string_view old = *text;
  for (std::size_t i = 0; i < old.size(); ++i) {
    const bool space = old[i] == ' ' && i + 1 < old.size() && matches(old, i + 1);
    if (!space) (*text)[kept++] = old[i];
  }
  text->resize(kept);
}

void RemoveSpacesAroundQuotes(std::string* text) {
  std::string cleaned;
  for (std::size_t i = 0; i < text->size(); ++i) {
    const bool lone = text->compare(i, 3, " ' ") == 0;
    cleaned += lone ? '\'' : (*text)[i];
    if (lone) i += 2;
  }
  *text = std::move(cleaned);
}

}  // namespace

void CleanSpaces(std::string* text) {
  RemoveSpacesBefore(text, IsPunctuation);
  RemoveSpacesAroundQuotes(text);
  RemoveSpacesBefore(text, IsContraction);
}

}  // namespace kvcache
