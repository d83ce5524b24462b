// SentencePiece's unigram model: GGUF's kind "t5".
//
// A piece of text is normalised (charsmap.h; spaces become U+2581, and where the file says so a
// space is put in front, and runs of them become one) and then cut into the tokens whose scores,
// which are log-probabilities, have the largest sum (Viterbi). A character that is no token is
// the unknown token, at the worst score less 10; unknown tokens in a row are one.
//
// Same ids as llama.cpp (src/llama-vocab.cpp) but for what docs/design/tokenizer.md lists: so
// sums are of doubles from left to right, and of equal ones the first found stays.
//
// Where no token reaches across a place, the best way to it is final: it is given out there, and
// only the stretch since the last such place is kept. U+2581 is one byte (a space) inside.
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
  // ByteTrie::kMostTokens, or one of more than 1,024 bytes. Cost: O(bytes of the vocabulary's
  // texts), and that of the charsmap.
  static Result<std::unique_ptr<Tokenizer>> Make(const TokenizerData& data);

  std::string_view KindName() const override { return "unigram"; }

 protected:
  void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const override;
  void AppendText(std::int32_t token, std::string* out) const override;
  bool AddsSpaceAfter(std::int32_t token) const override;

 private:
  class Normaliser;
  class Lattice;

  UnigramTokenizer(Vocabulary vocabulary, const TokenizerData& data, Charsmap charsmap);

  Charsmap charsmap_;
  bool merge_spaces_;
  ByteTrie trie_;
  std::vector<float> scores_;  // by token; user-defined ones 0
  float unknown_score_;
};

}  // namespace kvcache
