// The vocabularies on which the tokenizers are compared, and their files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer.h"

namespace kvcache {

// By name:
//   prose    8,000 tokens from text in all scripts; a space in front; chat tokens
//   code     3,000 tokens from programs; no space in front; runs of white space user-defined
//   tangle   invented tokens over few letters, with many equal scores, unreachable tokens and
//            all kinds: what no training would give
//   bare     no scores, no kinds, no bytes beyond ASCII
std::vector<std::pair<std::string, TokenizerData>> OracleVocabularies();

// A GGUF file with the vocabulary and no tensors.
Status WriteVocabulary(const TokenizerData& data, const std::string& path);

}  // namespace kvcache
