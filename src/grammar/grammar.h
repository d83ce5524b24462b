// A context-free grammar over bytes, and the calls that make one.
//
// A rule has alternatives, an alternative is a sequence of symbols, and a symbol is a set of bytes or a rule.
// No rule may begin with itself.
//
// Thread safety: values.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

using ByteSet = std::bitset<256>;

struct GrammarSymbol {
  bool is_rule = false;
  std::int32_t index = 0;  // of the rule or of the set
  friend bool operator==(const GrammarSymbol&, const GrammarSymbol&) = default;
  friend auto operator<=>(const GrammarSymbol&, const GrammarSymbol&) = default;
};
using GrammarSequence = std::vector<GrammarSymbol>;

struct Grammar {
  std::vector<ByteSet> sets{};
  std::vector<std::vector<GrammarSequence>> rules{};  // [rule][alternative]
  std::int32_t root = 0;
};

class GrammarBuilder {
 public:
  // The most symbols of all rules together.
  static constexpr std::size_t kMostSymbols = 200'000;

  // Returns a rule without alternatives: it matches nothing.
  GrammarSymbol NewRule();
  // Adds an alternative. REQUIRES: `rule` is a rule.
  void Add(GrammarSymbol rule, GrammarSequence sequence);
  // Returns a rule with these alternatives.
  GrammarSymbol AnyOf(std::vector<GrammarSequence> alternatives);

  GrammarSymbol Bytes(const ByteSet& set);
  GrammarSymbol Range(unsigned char first, unsigned char last);
  GrammarSequence Literal(std::string_view text);
  // Returns `least` to `most` times a symbol; most < 0: any number.
  GrammarSequence Repeat(GrammarSymbol symbol, std::int64_t least, std::int64_t most);

  bool too_large() const { return symbols_ > kMostSymbols; }
  // Returns the grammar of `root`, without alternatives that no text matches. Errors: kInvalidArgument if
  // no text matches at all, or the grammar is too large.
  Result<Grammar> Finish(GrammarSymbol root);

 private:
  Grammar grammar_;
  std::size_t symbols_ = 0;
  std::map<GrammarSymbol, GrammarSymbol> stars_;
  std::map<GrammarSymbol, std::vector<GrammarSymbol>> optionals_;  // [i]: at most i times
};

// Returns a + b.
GrammarSequence Joined(GrammarSequence a, const GrammarSequence& b);

}  // namespace kvcache
