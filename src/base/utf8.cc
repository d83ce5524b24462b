#include "base/utf8.h"

namespace kvcache {
namespace {

std::uint8_t ByteAt(std::string_view text, std::size_t at) {
  return static_cast<std::uint8_t>(text[at]);
}

struct Lead {
  int length;              // of the character
  std::uint8_t low, high;  // the range of its second byte
};

// Source: Unicode 15, table 3-7 (well-formed UTF-8 byte sequences).
Lead LeadOf(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2 || byte > 0xF4) return {-1, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  return {4, 0x80, static_cast<std::uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
}

}  // namespace

int CharacterLength(std::string_view text) {
  const Lead lead = LeadOf(ByteAt(text, 0));
  for (int i = 1; i < lead.length; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (at == text.size()) return 0;
    const std::uint8_t low = i == 1 ? lead.low : 0x80;
    const std::uint8_t high = i == 1 ? lead.high : 0xBF;
    if (ByteAt(text, at) < low || ByteAt(text, at) > high) return -1;
  }
  return lead.length;
}

std::uint32_t CodePointOf(std::string_view character) {
  constexpr std::uint32_t kLeadBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  std::uint32_t code_point = ByteAt(character, 0) & kLeadBits[character.size()];
  for (std::size_t i = 1; i < character.size(); ++i) {
    code_point = code_point << 6 | (ByteAt(character, i) & 0x3Fu);
  }
  return code_point;
}

void AppendUtf8(std::uint32_t code_point, std::string& out) {
  const auto add = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  const auto tail = [&](int shift) { add(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    add(0xF0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string_view BeginningOf(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && IsContinuation(text[max_bytes])) --max_bytes;
  return text.substr(0, max_bytes);
}

}  // namespace kvcache
