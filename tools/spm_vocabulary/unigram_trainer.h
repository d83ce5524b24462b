// Trains a SentencePiece-style unigram vocabulary.
//
//   0 <pad>  1 </s>  2 <unk>  3… the pieces, most likely first
//
// The candidates are the characters and the merges of BPE. In each round every word is split in the
// most likely way, the pieces are counted, and the least used ones are removed.
//
// Source: T. Kudo, "Subword Regularization", 2018, with the best segmentation instead of all.
#pragma once

#include <string_view>

#include "tokenizer/tokenizer.h"

namespace kvcache::spm_vocabulary {

// Returns a vocabulary of `size` tokens, or fewer if the text has too few. At most a third of them
// are characters. It is the same on every machine. REQUIRES: size > 3.
TokenizerData BuildUnigramVocabulary(std::string_view text, int size);

}  // namespace kvcache::spm_vocabulary
