// SentencePiece's BPE with byte fallback: GGUF's kind "llama".
//
// Each space of a piece of text becomes U+2581, and add_space_prefix adds one in front. The text
// starts as a sequence of characters. Two neighbours can be joined if their concatenated text is a
// token. The pair whose token has the best score is joined first, the leftmost one among equals,
// until no pair is left. A character that is not a token becomes the tokens of its bytes
// ("<0xE2>"), or the unknown token if one of them is missing.
//
// The ids equal llama.cpp's (src/llama-vocab.cpp), with one exception. There, text can be joined to
// a control, unknown or byte token if the vocabulary holds the parts of its text ("</" and "s>").
// Here it stays text.
//
// Three things make it fast and do not change the result:
//   - Two characters that are neighbours in no token can never be joined. The text is split there
//     (mostly into words), and each fragment is merged alone, in cache.
//   - A fragment that is a token usually merges to that token. The first merge shows whether it
//     does, and the result is stored per token.
//   - Otherwise a tree of maxima over the pairs (spm_merge.h) finds the best one in O(log n).
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/spm/spm_merge.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

class SpmTokenizer : public Tokenizer {
 public:
  // Cost: O(bytes of the vocabulary's texts).
  explicit SpmTokenizer(Vocabulary vocabulary);

  std::string_view KindName() const override { return "SentencePiece BPE"; }

 protected:
  void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const override;
  void AppendText(std::int32_t token, std::string* out) const override;
  bool AddsSpaceAfter(std::int32_t token) const override;

 private:
  enum SelfEncoding : std::uint8_t { kUntested, kEncodesToItself, kEncodesToOthers };

  std::string Escape(std::string_view text) const;
  void EncodeFragment(std::string_view fragment, SpmMerge* merge,
                      std::vector<std::int32_t>* out) const;
  void EncodeByJoining(std::string_view fragment, SpmMerge* merge,
                       std::vector<std::int32_t>* out) const;
  void EncodeBytes(std::string_view character, std::vector<std::int32_t>* out) const;

  SpmScores scores_;
  SpmNeighbors neighbors_;
  // By token: a SelfEncoding, whether encoding its text gives the token itself.
  mutable std::vector<std::atomic<std::uint8_t>> self_encoding_;
};

}  // namespace kvcache
