#include "app/terminal/wide_text.h"

#include <cstdint>
#include <cwchar>

#include "base/utf8.h"

namespace kvcache::app {
namespace {

constexpr std::uint32_t kUnknownCharacter = 0xfffd;

}  // namespace

std::wstring ToWide(std::string_view text) {
  std::wstring wide;
  wide.reserve(text.size());
  while (!text.empty()) {
    const int length = CharacterLength(text);
    const std::size_t bytes = length > 0 ? static_cast<std::size_t>(length) : 1;
    const std::uint32_t code_point = length > 0 ? CodePointOf(text.substr(0, bytes)) : 0;
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
    AppendUtf8(is_character ? code_point : kUnknownCharacter, out);
  }
  return out;
}

}  // namespace kvcache::app
