// Finds how much of a text fits into a number of tokens, with few encodings.
//
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/utf8.h"
#include "kvcache/status.h"

namespace kvcache {

// Returns a beginning of `text` of at most `max` tokens, and of few less: the search ends at 1 in 64. `count` returns
// the tokens of a beginning, as Result<std::size_t>, and is called at most 20 times. `none` and `all` are the tokens of
// no text and of all of it. REQUIRES: none <= max < all. Errors: those of `count`.
template <typename Count>
Result<std::string_view> LongestBeginning(std::string_view text, std::size_t none, std::size_t all,
                                          std::size_t max, Count count) {
  struct Beginning {
    std::size_t bytes, tokens;
  };
  Beginning fits{0, none};
  Beginning exceeds{text.size(), all};
  for (int round = 0; round < 20; ++round) {
    const std::size_t width = exceeds.bytes - fits.bytes;
    if (width <= 1 || fits.tokens >= max - max / 64) break;
    std::size_t step = width / 2;
    if (round % 2 == 0) {  // the tokens between the two are of about equal length
      const auto wanted = static_cast<double>(std::max(max - max / 128, fits.tokens) - fits.tokens);
      const auto between = static_cast<double>(exceeds.tokens - fits.tokens);
      step = static_cast<std::size_t>(static_cast<double>(width) * wanted / between);
    }
    step = std::clamp<std::size_t>(step, 1, width - 1);
    const std::string_view tried = BeginningOf(text, fits.bytes + step);
    if (tried.size() <= fits.bytes) {  // the step ends within a character
      fits.bytes += step;
      continue;
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::size_t tokens, count(tried));
    (tokens <= max ? fits : exceeds) = Beginning{tried.size(), tokens};
  }
  return BeginningOf(text, fits.bytes);
}

}  // namespace kvcache
