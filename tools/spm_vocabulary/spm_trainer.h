// Trains a SentencePiece-style BPE vocabulary.
//
//   0 <unk>  1 <s>  2 </s>  3…258 <0x00>…<0xFF>  the merges, best first  the characters
//
// A word begins with its space, written as U+2581, and no merge crosses its border. The most
// frequent pair is merged first. A merged piece's score is minus its rank; the scores of characters
// are lower.
//
// Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword
// Units", 2016; the layout is that of SentencePiece's model files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace kvcache::spm_vocabulary {

inline constexpr int kFixedTokens = 3 + 256;

// Returns a vocabulary of `size` tokens, or fewer if the text has no more pairs to merge. At most a
// third of them are characters, the most frequent ones. It is the same on every machine.
// REQUIRES: size >= kFixedTokens.
TokenizerData BuildSpmVocabulary(std::string_view text, int size);

// Returns the words of a text, each with its preceding space as U+2581, and their counts.
std::map<std::string, std::int64_t> CountSpmWords(std::string_view text);

// Adds a token to *data.
void AddToken(std::string_view text, TokenKind kind, float score, TokenizerData* data);

}  // namespace kvcache::spm_vocabulary
