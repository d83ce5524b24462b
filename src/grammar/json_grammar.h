// The parts of JSON as grammar: texts, numbers, any value.
//
// Values are compact, with at most one space after a comma or a colon, so that every list of tokens ends.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/number_range.h"
#include "grammar/text/text_language.h"

namespace kvcache {

class JsonGrammar {
 public:
  explicit JsonGrammar(GrammarBuilder& builder) : builder_(builder) {}

  GrammarSymbol AnyText();
  // Texts of a language. `cost`: as GrammarBuilder::Language. Equal languages are one.
  GrammarSequence TextOf(std::shared_ptr<const TextLanguage> language, std::size_t cost);
  // One text, with quotation marks. What writers of JSON escape, or may, is written in any way.
  GrammarSequence Constant(const std::string& text);
  // ":" and ",", each perhaps with a space.
  GrammarSymbol Colon();
  GrammarSymbol Comma();

  GrammarSymbol NumberOf(const NumberRange& range);

  GrammarSymbol Any();
  GrammarSymbol AnyObject();

 private:
  GrammarBuilder& builder_;
  std::optional<GrammarSymbol> text_, colon_, comma_, any_, object_;
  std::map<std::vector<std::int64_t>, GrammarSymbol> texts_;
  std::map<std::string, GrammarSymbol> numbers_;
};

}  // namespace kvcache
