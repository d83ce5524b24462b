// SentencePiece's unigram model: GGUF's kind "t5".
//
// A piece of text is normalised: charsmap.h replaces strings, spaces become U+2581, and the file
// may ask for a space in front and for one space in place of several. Then it is cut into tokens so
// that the sum of their scores, which are log-probabilities, is largest (Viterbi). A character that
// is not a token becomes the unknown token, whose score is the worst score minus 10. Consecutive
// unknown tokens become one.
//
// The ids equal llama.cpp's (src/llama-vocab.cpp); docs/design/tokenizer.md lists the exceptions.
// To decide ties as llama.cpp does, scores are added as doubles from left to right, and the first
// of equal sums wins.
//
// If no token crosses a position, the best path to it is final. Its tokens are output there, so
// only the part of the lattice since the last such position is kept. Internally U+2581 is one byte,
// a space.
//
// Source: T. Kudo, "Subword Regularization", 2018.
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram/byte_trie.h"
#include "tokenizer/unigram/charsmap.h"

namespace kvcache {

class UnigramTokenizer : public Tokenizer {
 public:
  // Errors: kCorrupt: those of Vocabulary::Make and Charsmap::Make; more tokens than
  // ByteTrie::kMaxTokens, or one of more than 1,024 bytes. Cost: O(bytes of the vocabulary's texts)
  // plus the cost of the charsmap.
  static Result<std::unique_ptr<Tokenizer>> Make(const TokenizerData& data);

  std::string_view KindName() const override { return "unigram"; }

 protected:
  void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const override;
  void AppendText(std::int32_t token, std::string* out) const override;
  bool AddsSpaceAfter(std::int32_t token) const override;

 private:
  class Normalizer;
  class Lattice;

  UnigramTokenizer(Vocabulary vocabulary, const TokenizerData& data, Charsmap charsmap);

  Charsmap charsmap_;
  bool merge_spaces_;
  ByteTrie trie_;
  std::vector<float> scores_;  // by token; user-defined ones 0
  float unknown_score_;
};

}  // namespace kvcache
