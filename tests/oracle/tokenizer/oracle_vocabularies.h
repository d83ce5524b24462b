// The vocabularies on which the tokenizers are compared, and their files.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache {

// Which of the strings a vocabulary is asked for: each `every`-th from `first` on. Each fourth of
// those is tried with special tokens parsed, too.
struct StringShare {
  std::size_t every = 1;
  std::size_t first = 0;
};

struct OracleVocabulary {
  std::string name;
  TokenizerData data;
  StringShare share = {};
};

// Kind "llama":
//   prose    8,000 tokens from text in all scripts; a space in front; chat tokens
//   code     3,000 tokens from programs; no space in front; runs of white space user-defined
//   tangle   invented tokens over few letters, with many equal scores, unreachable tokens and
//            all kinds: what no training would give
//   marks    marks ("[INST]") and HTML tags, all user-defined
//   bare     no scores, no kinds, no bytes beyond ASCII
std::vector<OracleVocabulary> SpmVocabularies();

// Kind "gpt2":
//   bpe-PRE    for each way of cutting, trained on its words; on half of the strings
//   tangle-PRE invented merges over few letters
//   bpe-marks  marks and HTML tags, all user-defined
//   uncut-PRE  merges across all words, under every name there is; on the other half of the
//              strings, or on a few where a name only repeats another's way of cutting
std::vector<OracleVocabulary> BpeVocabularies();

// Kind "t5":
//   t5         5,000 tokens; a normalisation, a space in front, runs of spaces merged
//   t5-bare    no normalisation, no space in front; user-defined and unused tokens
//   t5-ties    many equal scores; a space in front, spaces kept
std::vector<OracleVocabulary> UnigramVocabularies();

// Kind "gemma4":
//   gemma4     5,000 tokens, and merges for every way to cut one in two
std::vector<OracleVocabulary> GemmaVocabularies();

// A GGUF file with the vocabulary and no tensors.
Status WriteVocabulary(const TokenizerData& data, const std::string& path);

}  // namespace kvcache
