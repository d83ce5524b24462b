// The strings on which the tokenizers are compared: every script, marks, emoji, code, digits,
// white space, contractions, letters in mixed case, odd code points, broken UTF-8, the texts of
// special tokens whole and in parts.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache {

struct OracleString {
  std::string text;  // any bytes
  std::string seen;  // what llama.cpp makes of it first: valid UTF-8
};

// At least `count` strings, from a single letter to 3,000 bytes (30,000 of 10,000 and more), the
// same on every machine; `vocabularies` lend the texts of their tokens.
std::vector<OracleString> OracleStrings(std::size_t count,
                                        const std::vector<TokenizerData>& vocabularies);

}  // namespace kvcache
