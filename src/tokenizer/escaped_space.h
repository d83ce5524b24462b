// U+2581 stands for a space in SentencePiece vocabularies.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

namespace kvcache {

inline constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";

// Appends `text` with each U+2581 replaced by a space.
inline void AppendUnescaped(std::string_view text, std::string* out) {
  for (;;) {
    const std::size_t space = text.find(kEscapedSpace);
    out->append(text.substr(0, space));
    if (space == std::string_view::npos) return;
    out->push_back(' ');
    text.remove_prefix(space + kEscapedSpace.size());
  }
}

}  // namespace kvcache
