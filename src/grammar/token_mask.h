// Allows only the tokens whose text a grammar continues with.
//
//   const auto table = TokenTable::Make(pieces, ends);      once for a vocabulary
//   TokenMask mask(table, grammar);                         for each text
//   mask.Apply(logits);  … draw a token …  mask.Take(token);
//
// Most tokens are plain text, and in a state inside of a text every plain character leads back to the state. Such
// a state allows all plain tokens at once, and only the others are walked.
//
// Thread safety: a table is a constant; a mask is used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/grammar_automaton.h"

namespace kvcache {

// The texts of a vocabulary's tokens, sorted, so that tokens with the same beginning are tried together.
class TokenTable {
 public:
  // `pieces` are the texts by token; empty: the token is never allowed. `ends` are the tokens that end a text.
  TokenTable(std::vector<std::string> pieces, std::vector<std::int32_t> ends);

  struct Entry {
    std::int32_t token = 0;
    std::int32_t common = 0;  // bytes that the entry before it begins with, too
  };
  using Bits = std::vector<std::uint64_t>;

  // The tokens in the order of their texts: those of plain text, and the others.
  std::span<const Entry> plain() const { return plain_; }
  std::span<const Entry> others() const { return others_; }
  // One bit per token: whether it is plain.
  const Bits& plain_bits() const { return plain_bits_; }
  // Returns whether a byte is plain: printable ASCII that JSON does not escape.
  static bool IsPlain(unsigned char byte) {
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
  }
  const std::string& piece(std::int32_t token) const {
    return pieces_[static_cast<std::size_t>(token)];
  }
  std::span<const std::int32_t> ends() const { return ends_; }
  std::size_t size() const { return pieces_.size(); }
  bool IsEnd(std::int32_t token) const;

 private:
  // Fills in what entries have in common.
  void Sort(std::vector<Entry>& list) const;

  std::vector<std::string> pieces_;
  std::vector<std::int32_t> ends_;
  std::vector<Entry> plain_, others_;
  Bits plain_bits_;
};

class TokenMask {
 public:
  TokenMask(std::shared_ptr<const TokenTable> table, std::shared_ptr<const Grammar> grammar);

  // Takes the beginning of the text, before all tokens. Returns false if no text begins so.
  bool Begin(std::string_view text);
  // Makes the logits of tokens that are not allowed minus infinity. Returns false if no token is allowed.
  bool Apply(std::span<float> logits);
  // Lowers the logits of tokens that are not allowed. Returns false and changes nothing if no other token has a chance.
  bool Lower(std::span<float> logits, float by);
  // Takes a token that was drawn. Returns false if it was not allowed.
  bool Take(std::int32_t token);
  // Returns whether the text must end: no token but one that ends it is allowed.
  bool complete() const;
  // Returns whether the grammar is too large for its automaton. Then no token is allowed any more.
  bool full() const { return automaton_.full(); }

 private:
  using State = GrammarAutomaton::State;
  static constexpr std::size_t kMaxMasks = 256;
  static constexpr std::size_t kManyStates =
      GrammarAutomaton::kMaxStates / 2;  // then those of the text before are forgotten

  using Bits = TokenTable::Bits;

  const Bits& MaskOf(State state);
  // Sets the bits of the tokens that may follow.
  void Walk(State state, std::span<const TokenTable::Entry> entries, Bits& bits);
  // Returns whether every plain byte leads from the state to itself.
  bool PlainStays(State state);
  void ForgetIfMany();

  std::shared_ptr<const TokenTable> table_;
  mutable GrammarAutomaton automaton_;  // finds states when it is asked
  State state_;
  std::unordered_map<State, Bits> masks_;
  std::vector<State> path_;  // scratch
};

}  // namespace kvcache
