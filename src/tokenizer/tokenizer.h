// Encodes text to token ids and decodes ids to text.
//
// A vocabulary comes from a GGUF file (`tokenizer.ggml.*`) or from a TokenizerData. Four kinds are
// supported:
//
//   "llama"    SentencePiece BPE with byte fallback   spm/spm_tokenizer.h
//   "gpt2"     byte-level BPE                         bpe/bpe_tokenizer.h
//   "t5"       unigram                                unigram/unigram_tokenizer.h
//   "gemma4"   BPE over characters                    bpe/character_bpe_tokenizer.h
//
// To add a kind, derive from Tokenizer, implement the protected calls, and extend MakeTokenizer.
//
// Encoding adds the begin-of-sequence token if asked for, cuts the text at special tokens, encodes
// each piece of plain text between them by the kind's algorithm, and adds the end-of-sequence token
// if asked for. Token ids equal llama.cpp's (src/llama-vocab.cpp; tests/oracle/tokenizer compares
// them), except for structure tokens: typed text never becomes one of them, whatever type the file
// gives them (Vocabulary::IsStructure).
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/vocabulary.h"

namespace kvcache {

class GgufFile;

enum class AddToken : std::uint8_t {
  kPerFile,  // if the vocabulary asks for it
  kNo,
  kYes,  // if the vocabulary has such a token
};

struct EncodeOptions {
  AddToken add_bos = AddToken::kPerFile;
  AddToken add_eos = AddToken::kPerFile;
  SpecialText special = SpecialText::kPlain;
};

enum class ControlText : std::uint8_t {
  kHidden,  // control and unknown tokens decode to nothing
  kShown,   // they decode to their text
};

enum class LeadingSpace : std::uint8_t {
  kStrip,  // removes the space that encoding put in front of the text
  kKeep,   // keeps it: for text that continues a prompt
};

enum class SpaceCleaning : std::uint8_t {
  kNo,       // returns the encoded text
  kPerFile,  // removes spaces if the vocabulary asks for it (clean_spaces.h), as llama.cpp does
};

struct DecodeOptions {
  ControlText control = ControlText::kHidden;
  LeadingSpace leading_space = LeadingSpace::kStrip;
  SpaceCleaning cleaning = SpaceCleaning::kNo;
};

// A special token in a marked text: its text begins at `byte`, and it is tokens[index]. The tokens
// from `index` on do not depend on the text before `byte`.
struct TokenAnchor {
  std::size_t byte = 0;
  std::size_t index = 0;
};

struct MarkedTokens {
  std::vector<std::int32_t> tokens;
  std::vector<TokenAnchor> anchors;  // in order
};

class Tokenizer {
 public:
  virtual ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns the ids of `text`, which may hold any bytes, broken UTF-8 included.
  // Errors: kInvalidArgument: text of 2^30 bytes or more.
  Result<std::vector<std::int32_t>> Encode(std::string_view text,
                                           const EncodeOptions& options = {}) const;

  // Returns the ids of a prompt whose `foreign` ranges (in order, disjoint) were typed, not written
  // by the template. The text of a structure token (special_tokens.h) becomes that token only if
  // none of its bytes is foreign. `in_literals` (from InLiterals) are further tokens that are
  // structure to the template. No begin or end of sequence is added. If no foreign range holds such
  // a text, the ids are those of Encode with SpecialText::kParse.
  // Errors: as Encode.
  Result<MarkedTokens> EncodeMarked(std::string_view text, std::span<const TextRange> foreign,
                                    std::span<const std::int32_t> in_literals = {}) const;

  // Returns the tokens that are structure to a template with these literals, besides those that are
  // structure to all (SpecialTokens::InLiterals).
  std::vector<std::int32_t> InLiterals(std::span<const std::string> literals) const {
    return special_tokens_.InLiterals(literals);
  }

  // Returns the concatenated bytes of `tokens`. They are valid UTF-8 only if the tokens hold whole
  // characters; to stream output, use AppendPiece with a Utf8Stream.
  // LeadingSpace::kStrip removes one space wherever encoding has put one: at the front and after
  // special tokens. Then Decode(*Encode(text)) == text for all valid UTF-8 under three conditions:
  // each byte has a token; no special token strips white space; and (kind "llama") the vocabulary
  // has a token for U+2581 and the text does not contain it, because it stands for a space. Kind
  // "t5" decodes to the normalised text.
  // Errors: kInvalidArgument: an id out of range, with its index.
  Result<std::string> Decode(std::span<const std::int32_t> tokens,
                             const DecodeOptions& options = {}) const;

  // Appends the bytes of one token: its text with spaces, one byte for a byte token, nothing for a
  // control token (its text with kShown) or for an id out of range.
  //
  // Call this for every generated token. The first one keeps its leading space, because it follows
  // the prompt. If there is no prompt, skip one leading space, as Decode does.
  void AppendPiece(std::int32_t token, std::string* out,
                   ControlText control = ControlText::kHidden) const;
  std::string Piece(std::int32_t token, ControlText control = ControlText::kHidden) const;

  // The texts, kinds, scores, special ids, flags and notes.
  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Warnings about special ids of the file that are out of range, for display.
  const std::vector<std::string>& notes() const { return vocabulary_.notes(); }
  std::int32_t vocabulary_size() const { return vocabulary_.size(); }
  std::int32_t bos() const { return vocabulary_.ids().bos; }
  std::int32_t eos() const { return vocabulary_.ids().eos; }
  std::int32_t eot() const { return vocabulary_.ids().eot; }
  std::int32_t unknown() const { return vocabulary_.ids().unknown; }

  // Returns whether `token` ends an answer: eos, end of turn, end of message, and tokens whose
  // texts are known to mean the same. Returns false for ids out of range.
  bool IsEndOfGeneration(std::int32_t token) const { return vocabulary_.IsEndOfGeneration(token); }

  // Returns the token with exactly this text, in the vocabulary's own spelling ("\u2581the",
  // "<s>"); kNoToken if there is none.
  std::int32_t Find(std::string_view text) const { return vocabulary_.Find(text); }

  // Returns "SentencePiece BPE", "byte-level BPE (llama-bpe)", "unigram", …
  virtual std::string_view KindName() const = 0;

  // Returns "SentencePiece BPE, 32000 tokens, bos 1, eos 2, unknown 0".
  std::string Describe() const;

 protected:
  explicit Tokenizer(Vocabulary vocabulary);

  // Appends the ids of a piece of plain text. The piece begins the text or follows a special token.
  virtual void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const = 0;

  // Appends the bytes of a token that is neither control nor unknown.
  virtual void AppendText(std::int32_t token, std::string* out) const = 0;

  // Returns whether EncodePlain puts a space in front of the text that follows `token` (kNoToken:
  // in front of the first text). Decode removes it.
  virtual bool AddsSpaceAfter(std::int32_t token) const = 0;

  // Returns the token that Encode puts behind a text.
  virtual std::int32_t end() const { return eos(); }

  // Returns whether SpaceCleaning::kPerFile removes spaces.
  virtual bool CleansSpaces() const { return false; }

 private:
  Vocabulary vocabulary_;
  SpecialTokens special_tokens_;  // refers to vocabulary_
};

// Errors: kUnsupported: the kind, by its name; kCorrupt: the data contradict each other.
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const TokenizerData& data);

// Copies the file's metadata. Errors: as above, and kNotFound: the file has no vocabulary.
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file);

}  // namespace kvcache
