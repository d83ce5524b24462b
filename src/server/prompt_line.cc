#include "server/prompt_line.h"

#include <algorithm>

namespace kvcache::server {
namespace {

constexpr std::size_t kMostTokens = 64;  // on each side
constexpr std::size_t kMostBytes = 100;  // on each side

bool IsInsideCharacter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Returns at most kMostBytes from the end of a text, from the beginning of a character on.
std::string LastBytes(const std::string& text) {
  std::size_t begin = text.size() - std::min(text.size(), kMostBytes);
  while (begin < text.size() && begin > 0 && IsInsideCharacter(text[begin])) ++begin;
  return text.substr(begin);
}

// Returns at most kMostBytes from the beginning of a text, up to the end of a character.
std::string FirstBytes(const std::string& text) {
  if (text.size() <= kMostBytes) return text;
  std::size_t end = kMostBytes;
  while (end > 0 && IsInsideCharacter(text[end])) --end;
  return text.substr(0, end);
}

}  // namespace

std::string LineAt(const Engine& engine, std::span<const std::int32_t> tokens, Position at) {
  const auto decode = [&](std::size_t begin, std::size_t end) {
    auto text = engine.Detokenize(tokens.subspan(begin, end - begin));
    return text.ok() ? std::move(*text) : std::string();
  };
  const auto middle = static_cast<std::size_t>(at);
  const std::size_t begin = middle - std::min(middle, kMostTokens);
  const std::string before = decode(begin, middle);
  // Tokens at the beginning of a text lose a blank, so both sides are decoded together.
  const std::string all = decode(begin, std::min(tokens.size(), middle + kMostTokens));
  const std::string after = all.starts_with(before) ? all.substr(before.size()) : std::string();
  return LastBytes(before.substr(before.find_last_of('\n') + 1)) +
         FirstBytes(after.substr(0, after.find('\n')));
}

}  // namespace kvcache::server
