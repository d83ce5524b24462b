// SentencePiece's BPE with byte fallback: GGUF's kind "llama".
//
// A piece of text, with U+2581 for each space and (add_space_prefix) one more in front, is a
// row of characters. Of all neighbours whose texts together are a token, those with the best
// score are joined, the leftmost first among equals, until none are left. A character that is
// no token becomes its bytes' tokens ("<0xE2>"), or the unknown token where one is missing.
//
// Same ids as llama.cpp (src/llama-vocab.cpp) but for one thing: there, text can be joined to
// a control, unknown or byte token if the vocabulary holds the parts of its text ("</" and
// "s>"). Here these are found as special tokens or not at all: text stays text.
//
// How it is fast without changing the result:
//   - Two characters that stand side by side in no token can never be joined, so the text falls
//     apart there (mostly into words), and each stretch is worked on alone, in cache.
//   - A stretch that is a token by itself is that token, if joining leads there; whether it does
//     is found out once per token and remembered.
//   - Otherwise a tree of maxima over the neighbours (spm_merge.h): O(log n) per join.
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
  enum Reach : std::uint8_t { kUntried, kReached, kMissed };

  std::string Escape(std::string_view text) const;
  void EncodeStretch(std::string_view stretch, SpmMerge* merge,
                     std::vector<std::int32_t>* out) const;
  void EncodeByJoining(std::string_view stretch, SpmMerge* merge,
                       std::vector<std::int32_t>* out) const;
  void EncodeBytes(std::string_view character, std::vector<std::int32_t>* out) const;

  SpmScores scores_;
  SpmNeighbours neighbours_;
  // By token: does encoding its text give it?
  mutable std::vector<std::atomic<std::uint8_t>> reach_;
};

}  // namespace kvcache
