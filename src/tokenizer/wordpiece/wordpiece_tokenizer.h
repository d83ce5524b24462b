// WordPiece: GGUF's kind "bert", of BERT and other encoders of embeddings.
//
// Words are what stands between white space; punctuation and Han characters are words of their own. Each word is cut into
// the longest tokens, from left to right. The first one begins with U+2581 in the vocabulary, the others do not. A word
// that cannot be cut so, or of more than 100 characters, is one unknown token.
//
// Characters are taken apart (NFD) without their accents, and become lower case, unless the file's keys
// tokenizer.ggml.normalizer.strip_accents and .lowercase are false. Controls and characters that are not UTF-8 vanish.
// Decoded text has no accents, and a space in front of each word.
//
// Source: Devlin et al., "BERT" (2018), and the code published with it. docs/design/tokenizer.md lists where llama.cpp
// (src/llama-vocab.cpp, llm_tokenizer_wpm_session) differs. Thread safety: const calls may run concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache {

class WordPieceTokenizer final : public Tokenizer {
 public:
  // Errors: kCorrupt: those of Vocabulary::Make. Cost: O(bytes of the vocabulary's texts).
  static Result<std::unique_ptr<Tokenizer>> Make(const TokenizerData& data);

  std::string_view KindName() const override { return "WordPiece"; }

 protected:
  void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const override;
  void AppendText(std::int32_t token, std::string* out) const override;
  bool AddsSpaceAfter(std::int32_t) const override { return false; }
  std::int32_t end() const override { return vocabulary().ids().separator; }
  bool CleansSpaces() const override { return true; }

 private:
  struct Word {
    std::string text;
    std::size_t characters = 0;
  };

  WordPieceTokenizer(Vocabulary vocabulary, const TokenizerData& data);

  void EncodeWord(const Word& word, std::vector<std::int32_t>* out) const;
  // Returns the longest token that `text` begins with, of those that text can become; kNoToken if there is none.
  std::int32_t LongestToken(std::string_view text) const;

  bool strip_accents_;
  bool lowercase_;
  std::size_t max_token_bytes_ = 0;
};

}  // namespace kvcache
