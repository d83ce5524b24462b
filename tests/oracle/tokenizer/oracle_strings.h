// The strings on which the tokenizers are compared: every script, combining marks, emoji, code,
// digits, white space, contractions, mixed case, unusual code points, invalid UTF-8, and the texts
// of special tokens, whole and in parts.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache {

struct OracleString {
  std::string text;  // any bytes
  std::string seen;  // the valid UTF-8 that llama.cpp reads from it
};

// Returns at least `count` strings, the same on every machine. They have up to 3,000 bytes, or up
// to 30,000 if count is at least 10,000. Some contain texts of tokens of `vocabularies`.
std::vector<OracleString> OracleStrings(std::size_t count,
                                        const std::vector<TokenizerData>& vocabularies);

}  // namespace kvcache
