// An invented SentencePiece vocabulary of any size. It depends on the size alone.
//
//   0 <unk>, 1 <s>, 2 </s>, 3…258 <0x00>…<0xFF>, then characters and syllables, short ones
//   first, each with and without the mark of a preceding space; score: minus its number
//
// Every longer piece consists of shorter pieces with better scores, so that merging finds it.
#pragma once

#include <string>
#include <vector>

#include "gguf/gguf_writer.h"

namespace kvcache::make_model {

inline constexpr int kFixedPieces = 3 + 256;
inline constexpr int kMaxPieces = 500000;

// Sets the tokenizer's metadata. The last tokens are control tokens with the given texts.
// REQUIRES: kFixedPieces + control_tokens.size() <= size <= kMaxPieces.
void AddVocabulary(int size, const std::vector<std::string>& control_tokens, GgufHeader& header);

}  // namespace kvcache::make_model
