// The cleaning of decoded text that some files' makers ask for: " ." becomes "." and so on.
//
// It loses what the text was ("a ." and "a." decode alike), so decoding does it only on request.
//
// Source: transformers' clean_up_tokenization, as llama.cpp has it (src/llama-vocab.cpp,
// llama_vocab::impl::detokenize).
// Thread safety: a function of its argument.
#pragma once

#include <string>

namespace kvcache {

// In this order: takes the space out in front of "?", "!", "." and ","; both spaces around a
// lone "'"; the space in front of "'s", "'m", "'re" and "'ve". O(n).
void CleanSpaces(std::string* text);

}  // namespace kvcache
