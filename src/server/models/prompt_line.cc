#include "server/models/prompt_line.h"

#include <algorithm>

#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::server {
namespace {

constexpr std::size_t kMaxTokens = 64;      // on each side
constexpr std::size_t kMaxLineBytes = 100;  // on each side

// Returns at most kMaxLineBytes from the end of a text, from the beginning of a character on.
std::string LastBytes(const std::string& text) {
  std::size_t begin = text.size() - std::min(text.size(), kMaxLineBytes);
  while (begin < text.size() && begin > 0 && IsContinuation(text[begin])) ++begin;
  return text.substr(begin);
}

std::string FirstBytes(std::string_view text) {
  return std::string(BeginningOf(text, kMaxLineBytes));
}

}  // namespace

PromptDifference LineAt(const Engine& engine, std::span<const std::int32_t> tokens,
                        const PrefixDifference& difference) {
  const auto middle = static_cast<std::size_t>(difference.position);
  const std::size_t begin = middle - std::min(middle, kMaxTokens);
  // Tokens at the beginning of a text lose a blank, so all that is shown is decoded from one beginning.
  const auto decode = [&](std::size_t end) {
    auto text = engine.Detokenize(tokens.subspan(begin, end - begin));
    return text.ok() ? std::move(*text) : std::string();
  };
  const auto rest = [](const std::string& all, const std::string& part) {
    return all.starts_with(part) ? all.substr(part.size()) : std::string();
  };
  const std::string before = decode(middle);
  const std::string with_token = decode(std::min(tokens.size(), middle + 1));
  const std::string all = decode(std::min(tokens.size(), middle + kMaxTokens));
  PromptDifference line{.before = LastBytes(before.substr(before.find_last_of('\n') + 1)),
                        .prompt = FirstBytes(rest(with_token, before))};
  if (const std::size_t end = line.prompt.find('\n'); end != std::string::npos) {
    line.prompt.resize(end + 1);
  } else {
    const std::string after = rest(all, before);  // with the token
    line.after = rest(FirstBytes(after.substr(0, after.find('\n'))), line.prompt);
  }
  const auto cached = static_cast<std::int32_t>(difference.cached);
  line.cached = engine.tokenizer().Piece(cached, ControlText::kShown);
  return line;
}

}  // namespace kvcache::server
