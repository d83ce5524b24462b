// Trains a byte-level BPE vocabulary for a pre-tokenizer.
//
//   0…255 the bytes   256… the merges, best first   then the requested special tokens
//
// The pre-tokenizer splits text into words, and no merge crosses their borders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache::spm_vocabulary {

// The name that replaces a pre-tokenizer: words are then any 40 bytes.
inline constexpr std::string_view kUncut = "uncut";

// Returns a vocabulary of `size` tokens, or fewer if the text has no more pairs to merge, and then
// the control tokens. It is the same on every machine. REQUIRES: size >= 256; `pre` is a known
// pre-tokenizer or kUncut.
TokenizerData BuildBpeVocabulary(std::string_view text, int size, std::string_view pre,
                                 const std::vector<std::string>& control_tokens);

}  // namespace kvcache::spm_vocabulary
