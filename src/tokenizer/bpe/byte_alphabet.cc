#include "tokenizer/bpe/byte_alphabet.h"

#include <array>

namespace kvcache {
namespace {

constexpr std::uint16_t kCodePoints = 0x144;  // all characters of the alphabet are below

constexpr bool StandsForItself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<std::uint16_t, 256> character{};
  std::array<std::int16_t, kCodePoints> byte{};  // -1: none
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  std::uint16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto character = StandsForItself(byte) ? static_cast<std::uint16_t>(byte) : next++;
    alphabet.character[byte] = character;
    alphabet.byte[character] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}();

}  // namespace

void AppendSpelledByte(std::uint8_t byte, std::string* out) {
  const unsigned character = kAlphabet.character[byte];
  if (character >= 0x80) out->push_back(static_cast<char>(0xC0 | character >> 6));
  out->push_back(static_cast<char>(character >= 0x80 ? 0x80 | (character & 0x3F) : character));
}

std::string SpellBytes(std::string_view bytes) {
  std::string spelled;
  for (const char c : bytes) AppendSpelledByte(static_cast<std::uint8_t>(c), &spelled);
  return spelled;
}

bool AppendBytesOf(std::string_view spelled, std::string* out) {
  bool all = true;
  while (!spelled.empty()) {
    const auto lead = static_cast<std::uint8_t>(spelled[0]);
    unsigned character = lead;
    std::size_t length = 1;
    if (lead >= 0xC2 && lead < 0xE0 && spelled.size() > 1 && (spelled[1] & 0xC0) == 0x80) {
      character = (lead & 0x1Fu) << 6 | (static_cast<std::uint8_t>(spelled[1]) & 0x3Fu);
      length = 2;
    }
    const bool known =
        (lead < 0x80 || length == 2) && character < kCodePoints && kAlphabet.byte[character] >= 0;
    if (known) {
      out->push_back(static_cast<char>(kAlphabet.byte[character]));
    } else {
      out->append(spelled.substr(0, length));
    }
    all = all && known;
    spelled.remove_prefix(length);
  }
  return all;
}

}  // namespace kvcache
