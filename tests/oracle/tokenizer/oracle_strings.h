// The strings on which the tokenizers are compared: every script, marks, emoji, code, digits,
// white space, odd code points, the texts of special tokens whole and in parts.
#pragma once

#include <string>
#include <vector>

#include "model/tokenizer.h"

namespace kvcache {

// About 12,000 strings of valid UTF-8, the same on every machine; `vocabularies` lend the texts
// of their tokens.
std::vector<std::string> OracleStrings(const std::vector<TokenizerData>& vocabularies);

}  // namespace kvcache
