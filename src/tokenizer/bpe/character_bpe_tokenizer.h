// BPE over characters: GGUF's kind "gemma4".
//
// U+2581 stands for each space. The text is cut into runs of line feeds and of everything else; a
// run of line feeds that is a token is that token. In any other run the neighbours that a merge is
// listed for are joined, the first listed first, the leftmost of equal ones, beginning with
// characters. A character that is no token becomes its bytes' tokens ("<0xE2>"). Bytes that are not
// UTF-8 are U+FFFD each.
//
// The merging is byte-level BPE's (bpe_merge.h): merges that put the known characters together from
// their bytes are listed before those of the file, so that all characters are whole before anything
// else happens, and the bytes of unknown ones are left over.
//
// Same ids as llama.cpp (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GEMMA4), but where merging ends
// at a string that is no token: there, it is taken to bytes, here to the tokens that were joined.
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
  // Errors: kCorrupt: no merges, or too many, and those of Vocabulary::Make. Cost: O(bytes of the
  // vocabulary's texts and merges).
  static Result<std::unique_ptr<Tokenizer>> Make(const TokenizerData& data);

  std::string_view KindName() const override { return "character BPE"; }

 protected:
  void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const override;
  void AppendText(std::int32_t token, std::string* out) const override;
  bool AddsSpaceAfter(std::int32_t) const override { return false; }
  bool CleansSpaces() const override { return true; }

 private:
  CharacterBpeTokenizer(Vocabulary vocabulary, TextIndex words, BpeMerges merges)
      : Tokenizer(std::move(vocabulary)), words_(std::move(words)), merges_(std::move(merges)) {}

  void EncodeRun(std::string_view run, BpeMerge* merge, std::vector<std::int32_t>* out) const;

  TextIndex words_;  // the bytes of the tokens that text may become; the others are empty
  BpeMerges merges_;
};

}  // namespace kvcache
