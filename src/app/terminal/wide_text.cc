#include "app/terminal/wide_text.h"

#include <cstdint>
#include <cwchar>

#include "app/terminal/shown_text.h"

namespace kvcache::app {
namespace {

constexpr std::uint32_t kUnknownCharacter = 0xfffd;

// REQUIRES: `character` is well-formed.
std::uint32_t CodePoint(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  constexpr std::uint32_t kLeadBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  std::uint32_t code_point = byte(0) & kLeadBits[character.size()];
  for (std::size_t i = 1; i < character.size(); ++i)
    code_point = code_point << 6 | (byte(i) & 0x3f);
  return code_point;
}

void Append(std::uint32_t code_point, std::string& out) {
  const auto tail = [&](int shift) {
    out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3f));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xc0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xe0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace

std::wstring ToWide(std::string_view text) {
  std::wstring wide;
  wide.reserve(text.size());
  while (!text.empty()) {
    const int length = CharacterLength(text);
    const std::size_t bytes = length > 0 ? static_cast<std::size_t>(length) : 1;
    const std::uint32_t code_point = length > 0 ? CodePoint(text.substr(0, bytes)) : 0;
    wide += static_cast<wchar_t>(code_point == 0 ? kUnknownCharacter : code_point);
    text.remove_prefix(bytes);
  }
  return wide;
}

std::string FromWide(std::wstring_view text) {
  std::string out;
  out.reserve(text.size());
  for (const wchar_t character : text) {
    const auto code_point = std::uint32_t{static_cast<std::wint_t>(character)};
    const bool is_character =
        code_point < 0x110000 && (code_point < 0xd800 || code_point >= 0xe000);
    Append(is_character ? code_point : kUnknownCharacter, out);
  }
  return out;
}

}  // namespace kvcache::app
