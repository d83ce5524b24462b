#include "model/utf8_stream.h"

namespace kvcache {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the character that begins with `lead`, 0 where none does.
int CharacterLength(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuations, and overlong forms of ASCII
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Whether `byte` can be the second byte of a character: the second byte decides about overlong
// forms, surrogates and the end of the code space.
bool CanBeSecond(std::uint8_t lead, std::uint8_t byte) {
  switch (lead) {
    case 0xE0: return byte >= 0xA0 && byte < 0xC0;
    case 0xED: return byte >= 0x80 && byte < 0xA0;
    case 0xF0: return byte >= 0x90 && byte < 0xC0;
    case 0xF4: return byte >= 0x80 && byte < 0x90;
    default: return byte >= 0x80 && byte < 0xC0;
  }
}

// Whether `byte` can follow the first `count` bytes of a character that begins with `lead`.
bool CanFollow(std::uint8_t lead, int count, std::uint8_t byte) {
  return count == 1 ? CanBeSecond(lead, byte) : (byte & 0xC0) == 0x80;
}

std::size_t AsciiRun(std::string_view bytes) {
  std::size_t n = 0;
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

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const auto lead = static_cast<std::uint8_t>(text.front());
    const int length = CharacterLength(lead);
    if (length == 0 || static_cast<std::size_t>(length) > text.size()) return false;
    for (int i = 1; i < length; ++i) {
      if (!CanFollow(lead, i, static_cast<std::uint8_t>(text[static_cast<std::size_t>(i)]))) {
        return false;
      }
    }
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return true;
}

}  // namespace kvcache
