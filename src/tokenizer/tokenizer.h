// Text to tokens and back: the interface, and the part that all kinds of vocabulary share.
//
// A vocabulary comes from a GGUF file (`tokenizer.ggml.*`) or from a TokenizerData. The kinds:
// "llama" (SentencePiece BPE with byte fallback, spm_tokenizer.h), "gpt2" (byte-level BPE,
// bpe_tokenizer.h), "t5" (unigram, unigram_tokenizer.h) and "gemma4" (BPE over characters,
// character_bpe_tokenizer.h). Another kind derives from Tokenizer,
// implements the protected calls and joins the factory.
//
// Encoding, in order: the begin-of-sequence token if asked for; the text is cut at special
// tokens; each piece of plain text between them is handed to the kind's algorithm; the
// end-of-sequence token if asked for. Token ids equal those of llama.cpp
// (src/llama-vocab.cpp), which tests/oracle/tokenizer checks, but for one rule: user-defined
// tokens that look like marks ("[INST]") are treated like control tokens (special_tokens.h).
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
  kPerFile,  // as the vocabulary says
  kNo,
  kYes,  // where the vocabulary has such a token
};

struct EncodeOptions {
  AddToken add_bos = AddToken::kPerFile;
  AddToken add_eos = AddToken::kPerFile;
  SpecialText special = SpecialText::kPlain;
};

enum class ControlText : std::uint8_t {
  kHidden,  // control and unknown tokens give no bytes
  kShown,   // they give their text
};

enum class LeadingSpace : std::uint8_t {
  kStrip,  // undo the space that encoding put in front of the text
  kKeep,   // each token's bytes as they are: text that goes on from a prompt
};

enum class SpaceCleaning : std::uint8_t {
  kNo,       // the text as it was
  kPerFile,  // what the kind's makers ask for (clean_spaces.h), as llama.cpp's detokenize does
};

struct DecodeOptions {
  ControlText control = ControlText::kHidden;
  LeadingSpace leading_space = LeadingSpace::kStrip;
  SpaceCleaning cleaning = SpaceCleaning::kNo;
};

// Where a special token stands: its text begins at `byte`, and it is tokens[index]. What is
// encoded from there on is encoded the same whatever stands before.
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

  // The ids of `text` (any bytes; broken UTF-8 falls back to bytes too).
  // Errors: kInvalidArgument: text of 2^30 bytes or more.
  Result<std::vector<std::int32_t>> Encode(std::string_view text,
                                           const EncodeOptions& options = {}) const;

  // The ids of a prompt whose `foreign` stretches (in order, disjoint) came from outside: the
  // texts of structure tokens (special_tokens.h) become those tokens only where no byte of them
  // is foreign. `in_literals` (from InLiterals) are further tokens that are structure to the
  // template. Nothing is added at the ends. For a text without foreign stretches, and for foreign
  // ones without such texts, the ids are those of Encode with SpecialText::kParse.
  // Errors: as Encode.
  Result<MarkedTokens> EncodeMarked(std::string_view text, std::span<const TextRange> foreign,
                                    std::span<const std::int32_t> in_literals = {}) const;

  // Text tokens that a template with these literals makes structure (SpecialTokens::InLiterals).
  std::vector<std::int32_t> InLiterals(std::span<const std::string> literals) const {
    return special_tokens_.InLiterals(literals);
  }

  // The bytes of `tokens`, one after another. They are whole UTF-8 only if the tokens hold whole
  // characters: for output as it comes, AppendPiece into a Utf8Stream.
  // LeadingSpace::kStrip takes one space off where encoding has put one: at the front and after
  // special tokens. Then Decode(*Encode(text)) == text for all valid UTF-8 if there are tokens for
  // each byte, no special token strips the white space around it, and (of kind "llama") there is
  // a token for U+2581 and none in the text, for which it stands for a space. The kind "t5"
  // normalises: what it decodes to is the normalised text.
  // Errors: kInvalidArgument: an id out of range, with its index.
  Result<std::string> Decode(std::span<const std::int32_t> tokens,
                             const DecodeOptions& options = {}) const;

  // Appends what one token adds to the output: text with spaces, one byte for a byte token,
  // nothing for a control token (its text with kShown) or an id out of range.
  //
  // While generating, feed every new token through this: the first generated token keeps its
  // leading space, because it follows the prompt. Only for output that starts a text (no prompt
  // before it) skip one leading space, as Decode does.
  void AppendPiece(std::int32_t token, std::string* out,
                   ControlText control = ControlText::kHidden) const;
  std::string Piece(std::int32_t token, ControlText control = ControlText::kHidden) const;

  // Texts, kinds, scores, special ids, flags, notes.
  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Lines for people about special ids of the file that are out of range.
  const std::vector<std::string>& notes() const { return vocabulary_.notes(); }
  std::int32_t vocabulary_size() const { return vocabulary_.size(); }
  std::int32_t bos() const { return vocabulary_.ids().bos; }
  std::int32_t eos() const { return vocabulary_.ids().eos; }
  std::int32_t eot() const { return vocabulary_.ids().eot; }
  std::int32_t unknown() const { return vocabulary_.ids().unknown; }

  // The end of the answer: eos, end of turn, end of message, and what is known to mean it.
  bool IsEndOfGeneration(std::int32_t token) const { return vocabulary_.IsEndOfGeneration(token); }

  // The token with exactly this text in the vocabulary's own spelling ("\u2581the", "<s>");
  // kNoToken if none.
  std::int32_t Find(std::string_view text) const { return vocabulary_.Find(text); }

  // "SentencePiece BPE", "byte-level BPE (llama-bpe)", "unigram".
  virtual std::string_view KindName() const = 0;

  // "SentencePiece BPE, 32000 tokens, bos 1, eos 2, unknown 0".
  std::string Describe() const;

 protected:
  explicit Tokenizer(Vocabulary vocabulary);

  // Appends the ids of a piece of plain text that begins the text or follows a special token.
  virtual void EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const = 0;

  // Appends the bytes of a token that is neither control nor unknown.
  virtual void AppendText(std::int32_t token, std::string* out) const = 0;

  // Whether EncodePlain puts a space in front of text that follows `token` (kNoToken: of text
  // that begins). Decode takes it off there.
  virtual bool AddsSpaceAfter(std::int32_t token) const = 0;

  // What SpaceCleaning::kPerFile means.
  virtual bool CleansSpaces() const { return false; }

 private:
  Vocabulary vocabulary_;
  SpecialTokens special_tokens_;  // refers to vocabulary_
};

// Errors: kUnsupported: a kind not offered, by its name; kCorrupt: the data contradict each other.
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const TokenizerData& data);

// From the file's metadata, which are copied. Errors: as above, and kNotFound: no vocabulary.
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file);

}  // namespace kvcache
