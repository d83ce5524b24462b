// Removes spaces from decoded text as some vocabularies ask for: " ." becomes "." and so on.
//
// The original text is lost ("a ." and "a." decode alike), so decoding does it only on request.
//
// Source: transformers' clean_up_tokenization, as llama.cpp has it (src/llama-vocab.cpp,
// llama_vocab::impl::detokenize).
// Thread safety: a function of its argument.
#pragma once

#include <string>

namespace kvcache {

// Removes, in this order: the space in front of "?", "!", "." and ","; both spaces around a lone
// "'"; the space in front of "'s", "'m", "'re" and "'ve". O(n).
void CleanSpaces(std::string* text);

}  // namespace kvcache
