// Trains a SentencePiece-style BPE vocabulary.
//
//   0 <unk>  1 <s>  2 </s>  3…258 <0x00>…<0xFF>  the merges, best first  the characters
//
// Words begin at their space, written U+2581, and no merge crosses a word. The pair that occurs
// most often is merged first; the score of what comes of it is minus its rank, those of
// characters are below.
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

// `size` tokens, or fewer where the text has no more to merge; at most a third of them are
// characters, the frequent ones. The same vocabulary on every machine.
// REQUIRES: size >= kFixedTokens.
TokenizerData BuildSpmVocabulary(std::string_view text, int size);

// The words of a text, each with the space in front of it as U+2581, and how often they occur.
std::map<std::string, std::int64_t> CountSpmWords(std::string_view text);

// Adds a token; kinds as in TokenKind.
void AddToken(std::string_view text, TokenKind kind, float score, TokenizerData* data);

}  // namespace kvcache::spm_vocabulary
