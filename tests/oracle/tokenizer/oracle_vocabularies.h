// The vocabularies on which the tokenizers are compared, and their files.
#pragma once

#include <string>
#include <vector>

#include "model/tokenizer.h"

namespace kvcache {

struct OracleVocabulary {
  std::string name;
  TokenizerData data;
  std::size_t every = 1;  // only each so many-th string
};

// Kind "llama":
//   prose    8,000 tokens from text in all scripts; a space in front; chat tokens
//   code     3,000 tokens from programs; no space in front; runs of white space user-defined
//   tangle   invented tokens over few letters, with many equal scores, unreachable tokens and
//            all kinds: what no training would give
//   bare     no scores, no kinds, no bytes beyond ASCII
std::vector<OracleVocabulary> SpmVocabularies();

// Kind "gpt2":
//   bpe-PRE    for each way of cutting, trained on its words
//   tangle-PRE invented merges over few letters
//   uncut-PRE  merges across all words, under every name there is; for names that only repeat
//              another's way of cutting on fewer strings
std::vector<OracleVocabulary> BpeVocabularies();

// Kind "t5":
//   t5         5,000 tokens; a normalisation, a space in front, runs of spaces merged
//   t5-bare    no normalisation, no space in front; user-defined and unused tokens
//   t5-ties    many equal scores; a space in front, spaces kept
std::vector<OracleVocabulary> UnigramVocabularies();

// A GGUF file with the vocabulary and no tensors.
Status WriteVocabulary(const TokenizerData& data, const std::string& path);

}  // namespace kvcache
