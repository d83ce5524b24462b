// The parts of JSON as grammar: texts, numbers, ranges of integers, any value.
//
// Values are compact, with at most one space after a comma or a colon, so that every list of tokens ends.
// Numbers have at most 15 digits before and after the point.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "grammar/grammar.h"

namespace kvcache {

class JsonGrammar {
 public:
  explicit JsonGrammar(GrammarBuilder& builder) : builder_(builder) {}

  // One character inside of a text, escaped where it must be.
  GrammarSymbol Character();
  // A character of more than one byte.
  GrammarSymbol WideCharacter();
  // A text of so many characters; most < 0: any number.
  GrammarSequence Text(std::int64_t least, std::int64_t most);
  GrammarSymbol AnyText();
  // ":" and ",", each perhaps with a space.
  GrammarSymbol Colon();
  GrammarSymbol Comma();

  GrammarSymbol Integer();
  GrammarSymbol Number();
  // The integers from `least` to `most`. REQUIRES: both are at most 10^18 in size.
  GrammarSymbol IntegersBetween(std::int64_t least, std::int64_t most);
  // Numbers from `least` to `most`, with at most 6 digits after the point. `above` and `below`: numbers with a
  // fraction may lie up to 1 beyond that end.
  GrammarSymbol NumbersBetween(std::int64_t least, std::int64_t most, bool above, bool below);

  GrammarSymbol Any();
  GrammarSymbol AnyObject();
  GrammarSymbol AnyArray();
  // An object of any keys whose values match; most < 0: any number of them.
  GrammarSymbol Map(GrammarSymbol value, std::int64_t least, std::int64_t most);

 private:
  GrammarSymbol Digit() { return builder_.Range('0', '9'); }
  // Numbers without a sign, from `least` to `most`.
  GrammarSymbol Unsigned(std::uint64_t least, std::uint64_t most);
  // Digits of one length: those from `least` to `most`, which are as long.
  GrammarSequence Digits(std::string_view least, std::string_view most);

  GrammarBuilder& builder_;
  std::optional<GrammarSymbol> character_, wide_, text_, colon_, comma_, integer_, number_, any_,
      object_, array_;
};

}  // namespace kvcache
