// The vocabularies on which the tokenizers are compared, and their files.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache {

// Selects the strings that a vocabulary is tested with: every `every`-th from `first` on. Every
// fourth of those is also tokenised with special tokens parsed.
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
//   prose    8,000 tokens from text in all scripts; adds a leading space; chat tokens
//   code     3,000 tokens from programs; no leading space; runs of white space are user-defined
//   tangle   random tokens over few letters, with many equal scores, unreachable tokens and all
//            kinds of tokens, unlike any trained vocabulary
//   marks    marks ("[INST]") and HTML tags, all user-defined
//   bare     no scores, no token types, no bytes beyond ASCII
std::vector<OracleVocabulary> SpmVocabularies();

// Kind "gpt2":
//   bpe-PRE    for each way of splitting text, trained on its words; for half of the strings
//   tangle-PRE random merges over few letters
//   bpe-marks  marks and HTML tags, all user-defined
//   uncut-PRE  merges across word boundaries, for every pre-tokenizer; for the other half of the
//              strings, or for a few if the name is an alias
std::vector<OracleVocabulary> BpeVocabularies();

// Kind "t5":
//   t5         5,000 tokens; normalises text, adds a leading space, merges runs of spaces
//   t5-bare    no normalisation, no leading space; user-defined and unused tokens
//   t5-ties    many equal scores; adds a leading space, keeps runs of spaces
std::vector<OracleVocabulary> UnigramVocabularies();

// Kind "gemma4":
//   gemma4     5,000 tokens, and a merge for every way to split one into two
std::vector<OracleVocabulary> GemmaVocabularies();

// Kind "bert":
//   wordpiece        tokens in lower case; folds case and accents
//   wordpiece-cased  folds neither
std::vector<OracleVocabulary> WordPieceVocabularies();

// Writes a GGUF file with the vocabulary and no tensors.
Status WriteVocabulary(const TokenizerData& data, const std::string& path);

}  // namespace kvcache
