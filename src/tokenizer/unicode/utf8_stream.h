// Bytes in, whole characters out: text that can be shown while it is made.
//
// Tokens may hold parts of characters (a byte each, at worst). Push() gives out all characters
// that are complete and keeps the beginning of one that is not, three bytes at most. Bytes
// that are no UTF-8 become U+FFFD, as soon as it is certain that nothing can mend them: one for
// each maximal part of a well-formed character, as the Unicode standard recommends (section
// 3.9, "U+FFFD Substitution of Maximal Subparts") and browsers do. So the output is always
// valid UTF-8, and does not depend on how the bytes were cut.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

class Utf8Stream {
 public:
  // Appends to `out` what `bytes` complete.
  void Push(std::string_view bytes, std::string* out);

  // The end: an unfinished character becomes U+FFFD. The stream is as new afterwards.
  void Flush(std::string* out);

  // Bytes held back.
  int pending_bytes() const { return pending_; }

 private:
  char held_[4] = {};
  std::uint8_t pending_ = 0;
};

// Whether `text` is well-formed UTF-8: no surrogates, no overlong forms, nothing past U+10FFFF.
bool IsValidUtf8(std::string_view text);

// `text` itself if it is well-formed; else `*mended`, where U+FFFD stands for each byte that
// belongs to no well-formed character. (One for each byte, where a Utf8Stream has one for each
// part of a character: so do the tokenizers that ours equal.)
std::string_view MendUtf8(std::string_view text, std::string* mended);

}  // namespace kvcache
