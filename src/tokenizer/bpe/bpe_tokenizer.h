// Byte-level BPE: GGUF's kind "gpt2".
//
// A piece of text is cut into words (pre_tokenizer.h). A word starts as a sequence of bytes. The
// vocabulary lists pairs to merge; the pair listed first is merged first, until no listed pair is
// left. With some pre-tokenizers a word that is a token becomes that token without merging. Each
// byte that is not UTF-8 becomes U+FFFD.
//
// The ids equal llama.cpp's (src/llama-vocab.cpp); docs/design/tokenizer.md lists the exceptions.
//
// A word that is a token usually merges to that token. The first merge shows whether it does, and
// the result is stored per token.
//
// Some vocabularies were trained on texts in NFC; then each text is composed first, and decoding does not give
// back the other spelling.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/bpe_merge.h"
#include "tokenizer/bpe/bpe_merges.h"
#include "tokenizer/bpe/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

class BpeTokenizer : public Tokenizer {
 public:
  // Errors: kUnsupported: the pre-tokenizer, by its name; kCorrupt: no merges, or too many, and
  // those of Vocabulary::Make. Cost: O(bytes of the vocabulary's texts and merges).
  static Result<std::unique_ptr<Tokenizer>> Make(const TokenizerData& data);

  std::string_view KindName() const override { return kind_name_; }

 protected:
  void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const override;
  void AppendText(std::int32_t token, std::string* out) const override;
  bool AddsSpaceAfter(std::int32_t) const override { return false; }
  bool CleansSpaces() const override { return pre_.clean_spaces; }

 private:
  enum SelfEncoding : std::uint8_t { kUntested, kEncodesToItself, kEncodesToOthers };

  BpeTokenizer(Vocabulary vocabulary, const PreTokenizer& pre, bool composes, TextIndex words,
               BpeMerges merges);
  void EncodeWord(std::string_view word, BpeMerge* merge, std::vector<std::int32_t>* out) const;
  void EncodeByMerging(std::string_view word, BpeMerge* merge,
                       std::vector<std::int32_t>* out) const;

  const PreTokenizer& pre_;
  const bool composes_;
  std::string kind_name_;
  TextIndex words_;  // by token: its bytes; empty if text cannot become it
  BpeMerges merges_;
  // By token: a SelfEncoding, whether merging its bytes gives the token itself.
  mutable std::vector<std::atomic<std::uint8_t>> self_encoding_;
};

}  // namespace kvcache
