#include "tokenizer/unicode/utf8_stream.h"

#include <cstring>

namespace kvcache {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Returns the bytes of a character that begins with `lead`; 0 if no character does.
int CharacterLength(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuations, and overlong forms of ASCII
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Returns whether `byte` can be the second byte of a character. Its range excludes overlong forms,
// surrogates and code points past U+10FFFF.
bool CanBeSecond(std::uint8_t lead, std::uint8_t byte) {
  switch (lead) {
    case 0xE0: return byte >= 0xA0 && byte < 0xC0;
    case 0xED: return byte >= 0x80 && byte < 0xA0;
    case 0xF0: return byte >= 0x90 && byte < 0xC0;
    case 0xF4: return byte >= 0x80 && byte < 0x90;
    default: return byte >= 0x80 && byte < 0xC0;
  }
}

// Returns whether `byte` can follow the first `count` bytes of a character that begins with `lead`.
bool CanFollow(std::uint8_t lead, int count, std::uint8_t byte) {
  return count == 1 ? CanBeSecond(lead, byte) : (byte & 0xC0) == 0x80;
}

std::size_t AsciiRun(std::string_view bytes) {
  std::size_t n = 0;
  for (std::uint64_t word; n + 8 <= bytes.size(); n += 8) {
    std::memcpy(&word, bytes.data() + n, 8);
    if ((word & 0x8080808080808080) != 0) break;
  }
  while (n < bytes.size() && static_cast<std::uint8_t>(bytes[n]) < 0x80) ++n;
  return n;
}

}  // namespace

void Utf8Stream::Push(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    if (pending_ == 0) {
      const std::size_t run = AsciiRun(bytes);
      out->append(bytes.substr(0, run));
      bytes.remove_prefix(run);
      if (bytes.empty()) return;
    }
    const auto byte = static_cast<std::uint8_t>(bytes.front());
    if (pending_ > 0 && !CanFollow(static_cast<std::uint8_t>(held_[0]), pending_, byte)) {
      Flush(out);
      continue;  // the byte may begin a character
    }
    bytes.remove_prefix(1);
    held_[pending_++] = static_cast<char>(byte);
    const int length = CharacterLength(static_cast<std::uint8_t>(held_[0]));
    if (length == 0) {
      Flush(out);
    } else if (pending_ == length) {
      out->append(held_, pending_);
      pending_ = 0;
    }
  }
}

void Utf8Stream::Flush(std::string* out) {
  if (pending_ > 0) out->append(kReplacement);
  pending_ = 0;
}

namespace {

// Returns the bytes of the well-formed character at the front of `text`; 0 if there is none.
std::size_t CharacterAtFront(std::string_view text) {
  const auto lead = static_cast<std::uint8_t>(text.front());
  const int length = CharacterLength(lead);
  if (static_cast<std::size_t>(length) > text.size()) return 0;
  for (int i = 1; i < length; ++i) {
    if (!CanFollow(lead, i, static_cast<std::uint8_t>(text[static_cast<std::size_t>(i)]))) return 0;
  }
  return static_cast<std::size_t>(length);
}

// Returns how many bytes precede the first byte that belongs to no character.
std::size_t ValidPrefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    at += AsciiRun(text.substr(at));
    while (at < text.size() && static_cast<std::uint8_t>(text[at]) >= 0x80) {
      const std::size_t length = CharacterAtFront(text.substr(at));
      if (length == 0) return at;
      at += length;
    }
  }
  return at;
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  return ValidPrefix(text) == text.size();
}

std::string_view RepairUtf8(std::string_view text, std::string* repaired) {
  std::size_t valid = ValidPrefix(text);
  if (valid == text.size()) return text;
  repaired->clear();
  for (;; valid = ValidPrefix(text)) {
    repaired->append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) return *repaired;
    repaired->append(kReplacement);
    text.remove_prefix(1);
  }
}

}  // namespace kvcache
