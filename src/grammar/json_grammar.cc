#include "grammar/json_grammar.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "grammar/number_language.h"

namespace kvcache {
namespace {

constexpr std::size_t kCostOfNumber = 20;

// Returns whether all writers of JSON write a text as it is.
bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    return is_word ||
           std::string_view("_-. ,:;$#@!?*+()[]{}=~^|%").find(c) != std::string_view::npos;
  });
}

std::string KeyOf(const std::optional<NumberBound>& bound) {
  if (!bound) return "none;";
  return StrCat(bound->exclusive ? "beyond " : "at ", bound->at.negative ? "-" : "",
                bound->at.digits, "e", bound->at.exponent, ";");
}

}  // namespace

GrammarSequence JsonGrammar::TextOf(std::shared_ptr<const TextLanguage> language,
                                    std::size_t cost) {
  std::vector<std::int64_t> key = {language->lengths().min, language->lengths().max};
  for (const TextLanguage::Part& part : language->parts()) {
    key.push_back(reinterpret_cast<std::intptr_t>(part.program.get()));
    key.push_back(part.negated ? 1 : 0);
  }
  // The builder keeps the language, so that its programs' addresses stay theirs.
  const auto [known, is_new] = texts_.try_emplace(std::move(key));
  if (is_new) known->second = builder_.Language(std::move(language), cost);
  return Joined(Joined(builder_.Literal("\""), {known->second}), builder_.Literal("\""));
}

GrammarSymbol JsonGrammar::AnyText() {
  if (!text_) {
    text_ = builder_.AnyOf({TextOf(
        std::make_shared<const TextLanguage>(std::vector<TextLanguage::Part>(), TextLengths()),
        1)});
  }
  return *text_;
}

GrammarSequence JsonGrammar::Constant(const std::string& text) {
  if (IsPlain(text)) return builder_.Literal(StrCat("\"", text, "\""));
  // A text is far below the limits of a program.
  auto program = CompilePattern(TreeOfTexts({text}));
  if (!program.ok()) {
    return builder_.Literal(nlohmann::ordered_json(text).dump(
        -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  const std::size_t cost = program->nodes.size();
  const TextLanguage::Part part{std::make_shared<const PatternProgram>(*std::move(program))};
  return TextOf(std::make_shared<const TextLanguage>(std::vector{part}, TextLengths()), cost);
}

GrammarSymbol JsonGrammar::Colon() {
  if (!colon_) colon_ = builder_.AnyOf({builder_.Literal(":"), builder_.Literal(": ")});
  return *colon_;
}

GrammarSymbol JsonGrammar::Comma() {
  if (!comma_) comma_ = builder_.AnyOf({builder_.Literal(","), builder_.Literal(", ")});
  return *comma_;
}

GrammarSymbol JsonGrammar::NumberOf(const NumberRange& range) {
  std::string key = StrCat(KeyOf(range.min), KeyOf(range.max));
  if (range.unit) key += StrCat(range.unit->unit, "p", range.unit->places);
  if (range.fractions_only) key += "fractions";
  if (range.digits_only) key += "digits";
  const auto [known, is_new] = numbers_.try_emplace(std::move(key));
  if (is_new) {
    known->second = builder_.Language(std::make_shared<const NumberLanguage>(range), kCostOfNumber);
  }
  return known->second;
}

GrammarSymbol JsonGrammar::AnyObject() {
  if (object_) return *object_;
  object_ = builder_.NewRule();
  const GrammarSymbol pair = builder_.AnyOf({{AnyText(), Colon(), Any()}});
  const GrammarSymbol next = builder_.AnyOf({{Comma(), pair}});
  builder_.Add(*object_, builder_.Literal("{}"));
  builder_.Add(*object_,
               Joined(Joined(Joined(builder_.Literal("{"), {pair}), builder_.Repeat(next, 0, -1)),
                      builder_.Literal("}")));
  return *object_;
}

GrammarSymbol JsonGrammar::Any() {
  if (any_) return *any_;
  any_ = builder_.NewRule();
  for (const char* word : {"true", "false", "null", "[]"}) {
    builder_.Add(*any_, builder_.Literal(word));
  }
  builder_.Add(*any_, {AnyText()});
  builder_.Add(*any_, {NumberOf({})});
  builder_.Add(*any_, {AnyObject()});
  const GrammarSymbol next = builder_.AnyOf({{Comma(), *any_}});
  builder_.Add(*any_,
               Joined(Joined(Joined(builder_.Literal("["), {*any_}), builder_.Repeat(next, 0, -1)),
                      builder_.Literal("]")));
  return *any_;
}

}  // namespace kvcache
