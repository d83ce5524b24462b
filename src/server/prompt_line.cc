#include "server/prompt_line.h"

#include <algorithm>

namespace kvcache::server {
namespace {

constexpr std::size_t kMostTokens = 64;  // on each side
constexpr std::size_t kMostBytes = 200;

// Returns the length of the longest beginning that ends with a whole character and has at most `most` bytes.
std::size_t WholeLength(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text.size();
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return most;
}

}  // namespace

std::string LineAt(const Engine& engine, std::span<const std::int32_t> tokens, Position at) {
  const auto decode = [&](std::size_t begin, std::size_t end) {
    auto text = engine.Detokenize(tokens.subspan(begin, end - begin));
    return text.ok() ? std::move(*text) : std::string();
  };
  const auto middle = static_cast<std::size_t>(at);
  const std::string before = decode(middle - std::min(middle, kMostTokens), middle);
  std::string line = before.substr(before.find_last_of('\n') + 1);
  const std::string after = decode(middle, std::min(tokens.size(), middle + kMostTokens));
  line += after.substr(0, after.find('\n'));
  line.resize(WholeLength(line, kMostBytes));
  return line;
}

}  // namespace kvcache::server
