// Byte-level BPE: GGUF's kind "gpt2".
//
// A piece of text is cut into words (pre_tokenizer.h); in a word, which is a row of bytes, the
// neighbours that a merge is listed for are joined, the first listed first, until no listed pair
// is left. Where the pre-tokenizer says so, a word that is a token is that token without merging.
// Bytes that are not UTF-8 are U+FFFD each.
//
// Same ids as llama.cpp (src/llama-vocab.cpp) but for what docs/design/tokenizer.md lists.
//
// A word that is a token mostly comes out as that token; whether it does is found out once per
// token and remembered.
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
  enum Reach : std::uint8_t { kUntried, kReached, kMissed };

  BpeTokenizer(Vocabulary vocabulary, const PreTokenizer& pre, TextIndex words, BpeMerges merges);
  void EncodeWord(std::string_view word, BpeMerge* merge, std::vector<std::int32_t>* out) const;
  void EncodeByMerging(std::string_view word, BpeMerge* merge,
                       std::vector<std::int32_t>* out) const;

  const PreTokenizer& pre_;
  std::string kind_name_;
  TextIndex words_;  // the bytes of the tokens that text may become; the others are empty
  BpeMerges merges_;
  // By token: does merging its bytes give it?
  mutable std::vector<std::atomic<std::uint8_t>> reach_;
};

}  // namespace kvcache
