// Turns a stream of bytes into whole characters, so that text can be shown while it is generated.
//
// A token may hold part of a character, at worst a single byte. Push() outputs all complete
// characters and holds back the beginning of an incomplete one, three bytes at most. Broken UTF-8
// becomes U+FFFD as soon as no further byte can complete it: one for each maximal part of a
// well-formed character, as the Unicode standard recommends (section 3.9, "U+FFFD Substitution of
// Maximal Subparts") and browsers do. So the output is always valid UTF-8, and does not depend on
// how the bytes were split.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

class Utf8Stream {
 public:
  // Appends the characters that are complete after `bytes`.
  void Push(std::string_view bytes, std::string* out);

  // Ends the stream: an incomplete character becomes U+FFFD. The stream can be used again.
  void Flush(std::string* out);

  // Returns how many bytes are held back.
  int pending_bytes() const { return pending_; }

 private:
  char held_[4] = {};
  std::uint8_t pending_ = 0;
};

// Returns whether `text` is well-formed UTF-8: no surrogates, no overlong forms, nothing past
// U+10FFFF.
bool IsValidUtf8(std::string_view text);

// Returns `text` if it is well-formed. Otherwise returns `*repaired`, a copy with U+FFFD for each
// byte that belongs to no well-formed character. (Utf8Stream writes one U+FFFD for each part of a
// character; one for each byte is what llama.cpp's tokenizers do.)
std::string_view RepairUtf8(std::string_view text, std::string* repaired);

}  // namespace kvcache
