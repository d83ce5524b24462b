#include "grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// Takes away alternatives that no text matches. `has_strings`: of each language. Returns false if the root matches
// nothing.
template <typename HasStrings>
bool Trim(Grammar& grammar, HasStrings&& has_strings) {
  // A rule is productive once all symbols of one of its alternatives are. Each alternative counts those that are not.
  struct Alternative {
    std::size_t rule = 0;
    std::size_t missing = 0;
  };
  std::vector<Alternative> alternatives;
  std::vector<std::vector<std::size_t>> uses(
      grammar.rules.size());  // alternatives that have a rule
  std::vector<char> productive(grammar.rules.size(), 0);
  std::vector<std::size_t> found;
  const auto find = [&](std::size_t rule) {
    if (productive[rule] == 0) found.push_back(rule);
    productive[rule] = 1;
  };
  for (std::size_t rule = 0; rule < grammar.rules.size(); ++rule) {
    for (const GrammarSequence& sequence : grammar.rules[rule]) {
      Alternative alternative{.rule = rule};
      for (const GrammarSymbol& symbol : sequence) {
        const auto at = static_cast<std::size_t>(symbol.index);
        const bool is_rule = symbol.kind == GrammarSymbol::Kind::kRule;
        const bool is_set = symbol.kind == GrammarSymbol::Kind::kSet;
        if (is_rule) uses[at].push_back(alternatives.size());
        if (is_rule || !(is_set ? grammar.sets[at].any() : has_strings(at))) ++alternative.missing;
      }
      if (alternative.missing == 0) find(rule);
      alternatives.push_back(alternative);
    }
  }
  while (!found.empty()) {
    const std::size_t rule = found.back();
    found.pop_back();
    for (const std::size_t use : uses[rule]) {
      if (--alternatives[use].missing == 0) find(alternatives[use].rule);
    }
  }
  std::size_t next = 0;
  for (auto& rule : grammar.rules) {
    std::erase_if(rule, [&](const GrammarSequence&) { return alternatives[next++].missing > 0; });
  }
  return productive[static_cast<std::size_t>(grammar.root)] != 0;
}

}  // namespace

std::optional<Grammar> WantedPart(const Grammar& grammar) {
  if (grammar.unwanted.empty()) return {};
  Grammar wanted = grammar;
  for (const std::int32_t rule : std::exchange(wanted.unwanted, {})) {
    wanted.rules[static_cast<std::size_t>(rule)].clear();
  }
  // A language without strings is in no alternative of a finished grammar.
  if (!Trim(wanted, [](std::size_t) { return true; })) return {};
  return wanted;
}

GrammarSymbol GrammarBuilder::NewRule() {
  grammar_.rules.emplace_back();
  ++symbols_;
  return {GrammarSymbol::Kind::kRule, static_cast<std::int32_t>(grammar_.rules.size()) - 1};
}

void GrammarBuilder::Add(GrammarSymbol rule, GrammarSequence sequence) {
  symbols_ += 1 + sequence.size();
  grammar_.rules[static_cast<std::size_t>(rule.index)].push_back(std::move(sequence));
}

GrammarSymbol GrammarBuilder::AnyOf(std::vector<GrammarSequence> alternatives) {
  const GrammarSymbol rule = NewRule();
  for (GrammarSequence& alternative : alternatives) Add(rule, std::move(alternative));
  return rule;
}

GrammarSymbol GrammarBuilder::Bytes(const ByteSet& set) {
  const auto found = std::find(grammar_.sets.begin(), grammar_.sets.end(), set);
  const auto index = static_cast<std::int32_t>(found - grammar_.sets.begin());
  if (found == grammar_.sets.end()) grammar_.sets.push_back(set);
  return {GrammarSymbol::Kind::kSet, index};
}

GrammarSymbol GrammarBuilder::Range(unsigned char first, unsigned char last) {
  ByteSet set;
  for (std::size_t byte = first; byte <= last; ++byte) set.set(byte);
  return Bytes(set);
}

GrammarSequence GrammarBuilder::Literal(std::string_view text) {
  GrammarSequence sequence;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    sequence.push_back(Range(byte, byte));
  }
  return sequence;
}

GrammarSymbol GrammarBuilder::Language(std::shared_ptr<const ByteLanguage> language,
                                       std::size_t cost) {
  symbols_ += cost;
  bool has_strings = false;
  if (!too_large() && !gave_up_) {
    const std::unique_ptr<ByteReader> reader = language->Reader();
    has_strings = reader->start() != ByteReader::kDead;
    work_ += 10 + reader->work();
    gave_up_ = reader->full() || work_ > kMaxWork;
  }
  grammar_.languages.push_back(std::move(language));
  grammar_.costs.push_back(cost);
  has_strings_.push_back(has_strings ? 1 : 0);
  return {GrammarSymbol::Kind::kLanguage, static_cast<std::int32_t>(has_strings_.size()) - 1};
}

GrammarSymbol GrammarBuilder::Copy(const Grammar& grammar) {
  std::vector<GrammarSymbol> sets;
  std::vector<GrammarSymbol> rules;
  std::vector<GrammarSymbol> languages;
  for (const ByteSet& set : grammar.sets) sets.push_back(Bytes(set));
  for (std::size_t i = 0; i < grammar.languages.size(); ++i) {
    languages.push_back(Language(grammar.languages[i], grammar.costs[i]));
  }
  for (std::size_t i = 0; i < grammar.rules.size(); ++i) rules.push_back(NewRule());
  for (const std::int32_t rule : grammar.unwanted) {
    MarkUnwanted(rules[static_cast<std::size_t>(rule)]);
  }
  for (std::size_t i = 0; i < grammar.rules.size(); ++i) {
    for (GrammarSequence sequence : grammar.rules[i]) {
      for (GrammarSymbol& symbol : sequence) {
        const auto at = static_cast<std::size_t>(symbol.index);
        const bool is_rule = symbol.kind == GrammarSymbol::Kind::kRule;
        symbol = is_rule                                         ? rules[at]
                 : symbol.kind == GrammarSymbol::Kind::kLanguage ? languages[at]
                                                                 : sets[at];
      }
      Add(rules[i], std::move(sequence));
    }
  }
  return rules[static_cast<std::size_t>(grammar.root)];
}

GrammarSequence GrammarBuilder::Repeat(GrammarSymbol symbol, std::int64_t min, std::int64_t max) {
  GrammarSequence sequence;
  for (std::int64_t i = 0; i < min && !too_large(); ++i) {
    sequence.push_back(symbol);
    ++symbols_;
  }
  if (max < 0) {
    const auto [star, is_new] = stars_.try_emplace(symbol);
    if (is_new) {
      star->second = NewRule();
      Add(star->second, {});
      Add(star->second, {symbol, star->second});
    }
    sequence.push_back(star->second);
    return sequence;
  }
  std::vector<GrammarSymbol>& chain = optionals_[symbol];
  if (chain.empty()) chain.push_back(AnyOf({{}}));
  while (std::ssize(chain) <= max - min && !too_large()) {
    chain.push_back(AnyOf({{}, {symbol, chain.back()}}));
  }
  if (max > min && !too_large()) sequence.push_back(chain[static_cast<std::size_t>(max - min)]);
  return sequence;
}

Result<Grammar> GrammarBuilder::Finish(GrammarSymbol root) {
  if (too_large()) {
    return InvalidArgument(
        StrCat("has more than ", kMaxSymbols,
               " symbols when it is written out: give smaller lengths or lists"));
  }
  if (gave_up_) {
    return InvalidArgument(StrCat("has patterns, lengths or numbers that take more than ", kMaxWork,
                                  " steps to look for a text or a number"));
  }
  grammar_.root = root.index;
  if (!Trim(grammar_, [this](std::size_t language) { return has_strings_[language] != 0; })) {
    return InvalidArgument("allows no value");
  }
  return std::move(grammar_);
}

GrammarSequence Joined(GrammarSequence a, const GrammarSequence& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace kvcache
