// Small steps over a text that comes in pieces: markers of which only the beginning is there, and JSON.
//
// Thread safety: values.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

namespace kvcache {

inline constexpr std::string_view kWhiteSpace = " \t\r\n";

inline std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

// Removes white space in front.
inline void SkipSpaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
}

// Removes a marker in front. Returns whether it was there; an empty one never is.
inline bool TakeMarker(std::string_view& text, std::string_view marker) {
  if (marker.empty() || !text.starts_with(marker)) return false;
  text.remove_prefix(marker.size());
  return true;
}

// Returns whether a text is the beginning of a longer marker.
inline bool Begins(std::string_view text, std::string_view marker) {
  return text.size() < marker.size() && marker.starts_with(text);
}

// Returns the length of the longest end of `text` that begins `marker` and is not all of it.
inline std::size_t Overlap(std::string_view text, std::string_view marker) {
  if (marker.empty()) return 0;
  for (std::size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size) {
    if (marker.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

// The first of several markers in a text.
struct FoundMarker {
  std::size_t at = std::string_view::npos;  // npos: none
  std::size_t index = 0;                    // among the markers
  std::size_t certain = 0;                  // the bytes before it, or before what may begin one
};
// Of two at one place, the longer one. Empty markers are nowhere.
FoundMarker FindMarker(std::string_view text, std::initializer_list<std::string_view> markers);

// Follows an object, an array or a string of JSON, byte by byte.
class JsonScan {
 public:
  // Returns whether the value is complete with this byte.
  bool Take(char c);
  // Returns what completes the value.
  std::string Closing() const;
  bool quoted() const { return quoted_; }

 private:
  std::string closers_;  // of what is open, the outermost first
  bool quoted_ = false;
  bool escaped_ = false;
};

// Appends a byte of a JSON string's text, escaped if necessary.
void AppendEscaped(char c, std::string* out);
// Appends a character as UTF-8.
void AppendCharacter(char32_t character, std::string* out);

}  // namespace kvcache
