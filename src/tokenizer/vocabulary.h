// A vocabulary: the texts, scores and kinds of its tokens, and its special ids.
//
//   TokenizerData   the data of a file or a test; not checked
//   Vocabulary      checked and packed, with a hash index from text to id
//
// It follows llama.cpp (src/llama-vocab.cpp) in these points:
//   - Special ids that are missing or out of range take the defaults of the vocabulary's kind.
//   - A token with an empty text is never found.
//   - A token whose text is known to end an answer ("<|im_end|>") is a control token, whatever
//     its kind is in the file.
// It differs in these:
//   - Without kinds, texts such as "<0x0A>" are byte tokens.
//   - An id out of range leaves a note.
//   - Typed text never becomes a structure token (IsStructure).
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "tokenizer/text_index.h"

namespace kvcache {

inline constexpr std::int32_t kNoToken = -1;

// The numbers are GGUF's (`tokenizer.ggml.token_type`).
enum class TokenKind : std::uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,      // stands for text that the vocabulary has no tokens for
  kControl = 3,      // <s>, </s>, <|im_end|>: no text of its own
  kUserDefined = 4,  // found in the text before merging; some are structure
  kUnused = 5,
  kByte = 6,  // "<0x0A>": one byte
};

struct SpecialIds {
  std::int32_t bos = kNoToken;
  std::int32_t eos = kNoToken;
  std::int32_t eot = kNoToken;  // end of turn
  std::int32_t eom = kNoToken;  // end of message
  std::int32_t unknown = kNoToken;
  std::int32_t separator = kNoToken;
  std::int32_t padding = kNoToken;
  // Fill-in-the-middle (FIM).
  std::int32_t fim_prefix = kNoToken;
  std::int32_t fim_suffix = kNoToken;
  std::int32_t fim_middle = kNoToken;
  std::int32_t fim_padding = kNoToken;
  std::int32_t fim_repository = kNoToken;
  std::int32_t fim_separator = kNoToken;
};

// Whether the vocabulary's own tokenizer composes texts (NFC). GGUF has no key for it, so this one is ours.
inline constexpr const char* kComposeKey = "kvcache.tokenizer.compose";

// The values of the keys `tokenizer.ggml.*`. Unset ones take the defaults of the vocabulary's kind.
struct TokenizerData {
  std::string model = "llama";      // the kind of vocabulary
  std::string pre;                  // of kind "gpt2": the pre-tokenizer's name
  std::vector<std::string> tokens;  // by id; texts in the vocabulary's spelling: "\u2581the"
  std::vector<float> scores;        // as many, or none: all 0
  std::vector<std::int32_t> types;  // TokenKind as numbers; as many, or none: all normal
  std::vector<std::string> merges;  // of kind "gpt2": "left right", the first ones first
  std::string charsmap;             // of kind "t5": the normalisation rules (charsmap.h)

  std::optional<std::int64_t> bos, eos, eot, eom, unknown, separator, padding;
  std::optional<std::int64_t> fim_prefix, fim_suffix, fim_middle;
  std::optional<std::int64_t> fim_padding, fim_repository, fim_separator;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_spaces;
  std::optional<bool> compose;  // of kind "gpt2": whether texts become NFC (unicode_compose.h)
  std::optional<bool> strip_accents, lowercase;  // of kind "bert"

  // Ids of special tokens that strip the white space before or after them.
  std::vector<std::int64_t> strip_before, strip_after;
};

// The defaults of a kind of vocabulary for missing keys. The initial values are those of kind
// "llama".
struct VocabularyDefaults {
  SpecialIds ids = {.bos = 1, .eos = 2, .unknown = 0};
  bool add_bos = true;
  bool add_eos = false;
  bool add_space_prefix = true;
};

// A special id: its key, its members in both structs, and the texts of such tokens.
struct SpecialRole {
  std::string_view key;  // `tokenizer.ggml.` + this
  std::int32_t SpecialIds::*id;
  std::optional<std::int64_t> TokenizerData::*given;
  bool ends_generation;
  std::vector<std::string_view> texts;  // texts of such a token, tried if the file has no id
};
const std::vector<SpecialRole>& SpecialRoles();

class Vocabulary {
 public:
  // Errors, each with the numbers: kCorrupt: no tokens, too many tokens, arrays of different
  // lengths, two tokens with the same text, a type that is not a TokenKind, strip_before or
  // strip_after out of range, more than 4 MiB of special tokens (the automaton of special_tokens.h
  // takes about 80 times their size).
  // Cost: O(bytes of all texts).
  static Result<Vocabulary> Make(const TokenizerData& data,
                                 const VocabularyDefaults& defaults = {});

  std::int32_t size() const { return static_cast<std::int32_t>(kinds_.size()); }
  bool Has(std::int32_t token) const { return token >= 0 && token < size(); }

  // REQUIRES for these: Has(token).
  std::string_view text(std::int32_t token) const { return index_.text(token); }
  float score(std::int32_t token) const { return scores_[static_cast<std::size_t>(token)]; }
  TokenKind kind(std::int32_t token) const { return kinds_[static_cast<std::size_t>(token)]; }
  bool StripsBefore(std::int32_t token) const { return HasFlag(token, kStripBefore); }
  bool StripsAfter(std::int32_t token) const { return HasFlag(token, kStripAfter); }

  // Returns whether the token is structure: bos, the tokens that end an answer (eos, eot, eom, …),
  // control and unknown tokens, and tokens that look like markers and are user-defined or have a
  // role (SpecialIds). Typed text never becomes a structure token.
  bool IsStructure(std::int32_t token) const { return HasFlag(token, kStructure); }

  // Returns whether merging the pieces of a text may produce the token. Returns false for
  // structure, for byte tokens, and for user-defined tokens of shape kText (token_shape.h): those
  // are found before merging, or are structure to a template.
  bool CanBeMerged(std::int32_t token) const { return !HasFlag(token, kNeverMerged); }

  // Returns false for ids out of range.
  bool IsEndOfGeneration(std::int32_t token) const {
    return Has(token) && HasFlag(token, kEndOfGeneration);
  }

  // Returns the token with exactly this text; kNoToken if there is none.
  std::int32_t Find(std::string_view text) const { return index_.Find(text); }

  // Structure and user-defined tokens, the longest texts first, then by id. They are found in a
  // text before merging.
  const std::vector<std::int32_t>& special_tokens() const { return special_tokens_; }

  // Returns the token that stands for a byte: "<0x0A>", else the byte itself, else kNoToken. Never
  // returns a structure token.
  std::int32_t ByteToken(std::uint8_t byte) const { return byte_tokens_[byte]; }
  // Returns the byte of a byte token. REQUIRES: kind(token) == kByte.
  std::uint8_t TokenByte(std::int32_t token) const;

  const SpecialIds& ids() const { return ids_; }
  // One line for each special id of the file that is out of range, with the id, the number of
  // tokens, and the token that is used instead. -1 and 4294967295 mean "none" and leave no line.
  const std::vector<std::string>& notes() const { return notes_; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  bool add_space_prefix() const { return add_space_prefix_; }

 private:
  enum Flag : std::uint8_t {
    kStripBefore = 1,
    kStripAfter = 2,
    kEndOfGeneration = 4,
    kStructure = 8,
    kNeverMerged = 16
  };

  Vocabulary() = default;
  bool HasFlag(std::int32_t token, Flag flag) const {
    return (flags_[static_cast<std::size_t>(token)] & flag) != 0;
  }
  void SetFlag(std::int32_t token, Flag flag);
  void ClearFlag(std::int32_t token, Flag flag);
  void SetKind(std::int32_t token, TokenKind kind) {
    kinds_[static_cast<std::size_t>(token)] = kind;
  }
  Status SetTokens(const TokenizerData& data);
  Status SetKinds(const TokenizerData& data);
  Status SetStrips(const TokenizerData& data);
  void SetIds(const TokenizerData& data, const SpecialIds& defaults);
  void SetByteTokens();
  void FindRolesByText();
  void MarkEndOfGeneration();
  void UnmarkInnerEnds();
  void MarkStructure();
  Status CollectSpecialTokens();

  TextIndex index_;
  std::vector<float> scores_;
  std::vector<TokenKind> kinds_;
  std::vector<std::uint8_t> flags_;
  std::vector<std::int32_t> special_tokens_;
  std::array<std::int32_t, 256> byte_tokens_{};
  SpecialIds ids_;
  std::vector<std::string> notes_;
  bool add_bos_ = true;
  bool add_eos_ = false;
  bool add_space_prefix_ = true;
};

}  // namespace kvcache
