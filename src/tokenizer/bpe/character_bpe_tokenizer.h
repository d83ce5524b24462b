// BPE over characters: GGUF's kind "gemma4", and files of kind "gpt2" whose pre-tokenizer has the name of such a
// vocabulary ("sarvam-moe", "granite-embed-multi-311m").
//
// Each space becomes U+2581. The text is cut into runs of line feeds and runs of other characters.
// A run of line feeds that is a token becomes that token. Any other run is merged, beginning with
// characters: the pair listed first is merged first, the leftmost one among equals. A character
// that is not a token becomes the tokens of its bytes ("<0xE2>"). Each byte that is not UTF-8
// becomes U+FFFD.
//
// The algorithm is that of byte-level BPE (bpe_merge.h). Merges that assemble the known characters
// from their bytes come before the merges of the file. So all known characters are whole before
// other merges apply, and unknown ones stay bytes.
//
// The ids equal llama.cpp's (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GEMMA4), with one exception:
// if merging ends at a string that is not a token, llama.cpp falls back to its bytes, and this
// tokenizer to the tokens that were merged.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/bpe_merge.h"
#include "tokenizer/bpe/bpe_merges.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

class CharacterBpeTokenizer final : public Tokenizer {
 public:
  // Returns whether a vocabulary of kind "gpt2" is one of characters.
  static bool IsKindOf(const TokenizerData& data);

  // Errors: kCorrupt: no merges, or too many, and those of Vocabulary::Make. Cost: O(bytes of the
  // vocabulary's texts and merges).
  static Result<std::unique_ptr<Tokenizer>> Make(const TokenizerData& data);

  std::string_view KindName() const override { return "character BPE"; }

 protected:
  void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const override;
  void AppendText(std::int32_t token, std::string* out) const override;
  bool AddsSpaceAfter(std::int32_t) const override { return false; }
  bool CleansSpaces() const override { return cleans_spaces_; }

 private:
  CharacterBpeTokenizer(Vocabulary vocabulary, bool cleans_spaces, TextIndex words,
                        BpeMerges merges)
      : Tokenizer(std::move(vocabulary)),
        cleans_spaces_(cleans_spaces),
        words_(std::move(words)),
        merges_(std::move(merges)) {}

  void EncodeRun(std::string_view run, BpeMerge* merge, std::vector<std::int32_t>* out) const;

  bool cleans_spaces_;
  TextIndex words_;  // by token: its bytes; empty if text cannot become it
  BpeMerges merges_;
};

}  // namespace kvcache
