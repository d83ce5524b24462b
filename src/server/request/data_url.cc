#include "server/request/data_url.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::server {
namespace {

constexpr std::uint8_t kNoDigit = 255;

constexpr std::array<std::uint8_t, 256> kDigits = [] {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return digits;
}();

bool StartsWithWord(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

}  // namespace

Result<std::vector<std::byte>> DecodeBase64(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t bits = 0;
  int count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' || text[i] == '\r') continue;
    const std::uint8_t digit = kDigits[static_cast<unsigned char>(text[i])];
    if (digit == kNoDigit) {
      return InvalidArgument(StrCat("is no base64: byte ", i, " is not a digit of it"));
    }
    bits = bits << 6 | digit;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::byte>(bits >> count & 255));
  }
  if (count == 6 || (bits & ((1U << count) - 1)) != 0) {
    return InvalidArgument("is no base64: it ends inside of a byte");
  }
  if (bytes.empty()) return InvalidArgument("has no bytes");
  return bytes;
}

Result<std::vector<std::byte>> ReadDataUrl(std::string_view url) {
  if (StartsWithWord(url, "http:") || StartsWithWord(url, "https:")) {
    return InvalidArgument(
        "is an address, and the server fetches nothing; send the picture as a data URL");
  }
  const std::size_t comma = url.find(',');
  if (!StartsWithWord(url, "data:") || comma == std::string_view::npos ||
      !url.substr(0, comma).ends_with(";base64")) {
    return InvalidArgument("must be a data URL: data:image/png;base64,…");
  }
  return DecodeBase64(url.substr(comma + 1));
}

}  // namespace kvcache::server
