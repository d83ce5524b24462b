// A context-free grammar over bytes, and the calls that make one.
//
// A rule has alternatives, an alternative is a sequence of symbols, and a symbol is a set of bytes, a rule, or a
// language of byte strings. No rule may begin with itself.
//
// A rule may be unwanted: its texts are allowed, but nobody asked for them.
//
// Thread safety: values.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/byte_language.h"
#include "kvcache/status.h"

namespace kvcache {

using ByteSet = std::bitset<256>;

struct GrammarSymbol {
  enum class Kind : std::uint8_t { kSet, kRule, kLanguage };
  Kind kind = Kind::kSet;
  std::int32_t index = 0;  // among those of its kind
  friend bool operator==(const GrammarSymbol&, const GrammarSymbol&) = default;
  friend auto operator<=>(const GrammarSymbol&, const GrammarSymbol&) = default;
};
using GrammarSequence = std::vector<GrammarSymbol>;

struct Grammar {
  std::vector<ByteSet> sets{};
  std::vector<std::vector<GrammarSequence>> rules{};  // [rule][alternative]
  std::vector<std::shared_ptr<const ByteLanguage>> languages{};
  std::vector<std::size_t> costs{};      // of the languages, in symbols
  std::vector<std::int32_t> unwanted{};  // rules
  std::int32_t root = 0;
};

// Returns the grammar of the texts without unwanted rules; none: no rule is unwanted, or no text is without.
std::optional<Grammar> WantedPart(const Grammar& grammar);

class GrammarBuilder {
 public:
  // The most symbols of all rules together.
  static constexpr std::size_t kMaxSymbols = 200'000;
  // The most work that it may take to find whether languages have strings, all together.
  static constexpr std::size_t kMaxWork = 20'000'000;

  // Returns a rule without alternatives: it matches nothing.
  GrammarSymbol NewRule();
  // Adds an alternative. REQUIRES: `rule` is a rule.
  void Add(GrammarSymbol rule, GrammarSequence sequence);
  // Returns a rule with these alternatives.
  GrammarSymbol AnyOf(std::vector<GrammarSequence> alternatives);

  // Says that the texts of a rule are unwanted. REQUIRES: `rule` is a rule.
  void MarkUnwanted(GrammarSymbol rule) { grammar_.unwanted.push_back(rule.index); }

  GrammarSymbol Bytes(const ByteSet& set);
  GrammarSymbol Range(unsigned char first, unsigned char last);
  GrammarSequence Literal(std::string_view text);
  // Returns a symbol for the strings of a language. `cost`: counts as so many symbols.
  GrammarSymbol Language(std::shared_ptr<const ByteLanguage> language, std::size_t cost);
  // Returns a rule for the texts of another grammar.
  GrammarSymbol Copy(const Grammar& grammar);
  // Returns `min` to `max` times a symbol; max < 0: any number.
  GrammarSequence Repeat(GrammarSymbol symbol, std::int64_t min, std::int64_t max);

  bool too_large() const { return symbols_ > kMaxSymbols; }
  // Returns the grammar of `root`, without alternatives that no text matches. Errors: kInvalidArgument if
  // no text matches at all, or the grammar or one of its languages is too large.
  Result<Grammar> Finish(GrammarSymbol root);

 private:
  Grammar grammar_;
  std::size_t symbols_ = 0;
  std::vector<char> has_strings_;  // [language]
  std::size_t work_ = 0;           // on languages
  bool gave_up_ = false;           // on one of them
  std::map<GrammarSymbol, GrammarSymbol> stars_;
  std::map<GrammarSymbol, std::vector<GrammarSymbol>> optionals_;  // [i]: at most i times
};

// Returns a + b.
GrammarSequence Joined(GrammarSequence a, const GrammarSequence& b);

}  // namespace kvcache
