// Trains a byte-level BPE vocabulary for a pre-tokenizer.
//
//   0…255 the bytes   256… the merges, best first   the special tokens that are asked for
//
// Words are what the pre-tokenizer cuts; no merge crosses a word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache::spm_vocabulary {

// In place of a pre-tokenizer: words of 40 bytes, wherever these end.
inline constexpr std::string_view kUncut = "uncut";

// `size` tokens, or fewer where the text has no more to merge, and then the control tokens. The
// same vocabulary on every machine. REQUIRES: size >= 256, a pre-tokenizer that there is, or
// kUncut.
TokenizerData BuildBpeVocabulary(std::string_view text, int size, std::string_view pre,
                                 const std::vector<std::string>& control_tokens);

}  // namespace kvcache::spm_vocabulary
