// Trains a SentencePiece-style unigram vocabulary.
//
//   0 <pad>  1 </s>  2 <unk>  3… the pieces, most likely first
//
// Pieces to choose from are the characters and what BPE would merge. In each round every word is
// cut in the most likely way, the pieces are counted, and those that are used least go.
//
// Source: T. Kudo, "Subword Regularization", 2018, with the best cut in place of all of them.
#pragma once

#include <string_view>

#include "tokenizer/tokenizer.h"

namespace kvcache::spm_vocabulary {

// `size` tokens, or fewer where the text does not give them; at most a third of them are
// characters. The same vocabulary on every machine. REQUIRES: size > 3.
TokenizerData BuildUnigramVocabulary(std::string_view text, int size);

}  // namespace kvcache::spm_vocabulary
