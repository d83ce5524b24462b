#include "grammar/json_grammar.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {
namespace {

constexpr int kDigits = 15;
constexpr int kFraction = 6;  // digits of a number between bounds

}  // namespace

// UTF-8 without surrogates and overlong forms (RFC 3629).
GrammarSymbol JsonGrammar::WideCharacter() {
  if (wide_) return *wide_;
  const auto range = [&](int first, int last) {
    return builder_.Range(static_cast<unsigned char>(first), static_cast<unsigned char>(last));
  };
  const GrammarSymbol tail = range(0x80, 0xBF);
  wide_ = builder_.AnyOf({{range(0xC2, 0xDF), tail},
                          {range(0xE0, 0xE0), range(0xA0, 0xBF), tail},
                          {range(0xE1, 0xEC), tail, tail},
                          {range(0xED, 0xED), range(0x80, 0x9F), tail},
                          {range(0xEE, 0xEF), tail, tail},
                          {range(0xF0, 0xF0), range(0x90, 0xBF), tail, tail},
                          {range(0xF1, 0xF3), tail, tail, tail},
                          {range(0xF4, 0xF4), range(0x80, 0x8F), tail, tail}});
  return *wide_;
}

GrammarSymbol JsonGrammar::Character() {
  if (character_) return *character_;
  ByteSet plain;
  for (std::size_t byte = 0x20; byte < 0x7F; ++byte) plain.set(byte, byte != '"' && byte != '\\');
  ByteSet short_escape;
  for (const char c : std::string_view("\"\\/bfnrt"))
    short_escape.set(static_cast<unsigned char>(c));
  const auto set_of = [&](std::string_view bytes) {
    ByteSet set;
    for (const char c : bytes) set.set(static_cast<unsigned char>(c));
    return builder_.Bytes(set);
  };
  const GrammarSymbol hex = set_of("0123456789abcdefABCDEF");
  const auto escape = [&](const GrammarSequence& rest) {
    return Joined(builder_.Literal("\\u"), rest);
  };
  const GrammarSymbol d = set_of("dD");
  const GrammarSequence low = escape({d, set_of("cdefCDEF"), hex, hex});
  character_ = builder_.AnyOf({{builder_.Bytes(plain)},
                               {WideCharacter()},
                               Joined(builder_.Literal("\\"), {builder_.Bytes(short_escape)}),
                               escape({set_of("0123456789abcefABCEF"), hex, hex, hex}),
                               escape({d, set_of("01234567"), hex, hex}),
                               Joined(escape({d, set_of("89abAB"), hex, hex}), low)});
  return *character_;
}

GrammarSequence JsonGrammar::Text(std::int64_t least, std::int64_t most) {
  GrammarSequence text = builder_.Literal("\"");
  text = Joined(std::move(text), builder_.Repeat(Character(), least, most));
  return Joined(std::move(text), builder_.Literal("\""));
}

GrammarSymbol JsonGrammar::AnyText() {
  if (!text_) text_ = builder_.AnyOf({Text(0, -1)});
  return *text_;
}

GrammarSymbol JsonGrammar::Colon() {
  if (!colon_) colon_ = builder_.AnyOf({builder_.Literal(":"), builder_.Literal(": ")});
  return *colon_;
}

GrammarSymbol JsonGrammar::Comma() {
  if (!comma_) comma_ = builder_.AnyOf({builder_.Literal(","), builder_.Literal(", ")});
  return *comma_;
}

GrammarSymbol JsonGrammar::Integer() {
  if (integer_) return *integer_;
  const GrammarSequence positive =
      Joined({builder_.Range('1', '9')}, builder_.Repeat(Digit(), 0, kDigits - 1));
  integer_ =
      builder_.AnyOf({builder_.Literal("0"), positive, Joined(builder_.Literal("-"), positive)});
  return *integer_;
}

GrammarSymbol JsonGrammar::Number() {
  if (number_) return *number_;
  const GrammarSymbol magnitude =
      builder_.AnyOf({builder_.Literal("0"), Joined({builder_.Range('1', '9')},
                                                    builder_.Repeat(Digit(), 0, kDigits - 1))});
  const GrammarSymbol sign = builder_.AnyOf({{}, builder_.Literal("-")});
  const GrammarSymbol fraction =
      builder_.AnyOf({{}, Joined(builder_.Literal("."), builder_.Repeat(Digit(), 1, kDigits))});
  ByteSet e;
  e.set('e').set('E');
  const GrammarSymbol power_sign =
      builder_.AnyOf({{}, builder_.Literal("-"), builder_.Literal("+")});
  const GrammarSymbol power =
      builder_.AnyOf({{}, Joined({builder_.Bytes(e), power_sign}, builder_.Repeat(Digit(), 1, 2))});
  number_ = builder_.AnyOf({{sign, magnitude, fraction, power}});
  return *number_;
}

GrammarSequence JsonGrammar::Digits(std::string_view least, std::string_view most) {
  if (least.empty()) return {};
  const auto low = static_cast<unsigned char>(least[0]);
  const auto high = static_cast<unsigned char>(most[0]);
  const std::string_view least_rest = least.substr(1);
  const std::string_view most_rest = most.substr(1);
  if (low == high) {
    return Joined({builder_.Range(low, low)}, Digits(least_rest, most_rest));
  }
  const std::string nines(least_rest.size(), '9');
  const std::string zeros(least_rest.size(), '0');
  // A first digit with all numbers after it needs no rule of its own.
  const bool low_is_whole = least_rest == zeros;
  const bool high_is_whole = most_rest == nines;
  const GrammarSymbol rule = builder_.NewRule();
  if (!low_is_whole) {
    builder_.Add(rule, Joined({builder_.Range(low, low)}, Digits(least_rest, nines)));
  }
  if (!high_is_whole) {
    builder_.Add(rule, Joined({builder_.Range(high, high)}, Digits(zeros, most_rest)));
  }
  const int first = low + (low_is_whole ? 0 : 1);
  const int last = high - (high_is_whole ? 0 : 1);
  if (first <= last) {
    const auto count = static_cast<std::int64_t>(least_rest.size());
    builder_.Add(rule, Joined({builder_.Range(static_cast<unsigned char>(first),
                                              static_cast<unsigned char>(last))},
                              builder_.Repeat(Digit(), count, count)));
  }
  return {rule};
}

GrammarSymbol JsonGrammar::Unsigned(std::uint64_t least, std::uint64_t most) {
  const GrammarSymbol rule = builder_.NewRule();
  while (least <= most) {
    const std::string low = std::to_string(least);
    const std::string longest(low.size(), '9');
    const std::uint64_t high = std::min<std::uint64_t>(most, std::stoull(longest));
    builder_.Add(rule, Digits(low, std::to_string(high)));
    least = high + 1;
  }
  return rule;
}

GrammarSymbol JsonGrammar::IntegersBetween(std::int64_t least, std::int64_t most) {
  const GrammarSymbol rule = builder_.NewRule();
  if (most >= 0 && least <= most) {
    builder_.Add(rule, {Unsigned(static_cast<std::uint64_t>(std::max<std::int64_t>(least, 0)),
                                 static_cast<std::uint64_t>(most))});
  }
  if (least < 0 && least <= most) {
    const auto smallest = static_cast<std::uint64_t>(std::max<std::int64_t>(-most, 1));
    builder_.Add(rule, Joined(builder_.Literal("-"),
                              {Unsigned(smallest, static_cast<std::uint64_t>(-least))}));
  }
  return rule;
}

// A number n.f lies between n and n + 1, so the last integer may have a fraction only beyond the bound.
GrammarSymbol JsonGrammar::NumbersBetween(std::int64_t least, std::int64_t most, bool above,
                                          bool below) {
  const GrammarSymbol rule = builder_.AnyOf({{IntegersBetween(least, most)}});
  const GrammarSequence fraction =
      Joined(builder_.Literal("."), builder_.Repeat(Digit(), 1, kFraction));
  const auto add = [&](std::int64_t first, std::int64_t last, std::string_view sign) {
    if (first > last) return;
    const GrammarSymbol whole =
        Unsigned(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last));
    builder_.Add(rule, Joined(Joined(builder_.Literal(sign), {whole}), fraction));
  };
  add(std::max<std::int64_t>(least, 0), most - (above ? 0 : 1), "");
  add(std::max<std::int64_t>(-most, 0), -least - (below ? 0 : 1), "-");
  return rule;
}

GrammarSymbol JsonGrammar::Map(GrammarSymbol value, std::int64_t least, std::int64_t most) {
  const GrammarSymbol pair = builder_.AnyOf({{AnyText(), Colon(), value}});
  const GrammarSymbol next = builder_.AnyOf({{Comma(), pair}});
  const GrammarSymbol rule = builder_.NewRule();
  const GrammarSequence open = builder_.Literal("{");
  const GrammarSequence close = builder_.Literal("}");
  if (least == 0) builder_.Add(rule, Joined(open, close));
  if (most != 0) {
    const GrammarSequence rest =
        builder_.Repeat(next, std::max<std::int64_t>(least - 1, 0), most < 0 ? -1 : most - 1);
    builder_.Add(rule, Joined(Joined(Joined(open, {pair}), rest), close));
  }
  return rule;
}

GrammarSymbol JsonGrammar::AnyObject() {
  if (!object_) object_ = Map(Any(), 0, -1);
  return *object_;
}

GrammarSymbol JsonGrammar::AnyArray() {
  if (array_) return *array_;
  array_ = builder_.NewRule();
  const GrammarSymbol next = builder_.AnyOf({{Comma(), Any()}});
  builder_.Add(*array_, builder_.Literal("[]"));
  builder_.Add(*array_,
               Joined(Joined(Joined(builder_.Literal("["), {Any()}), builder_.Repeat(next, 0, -1)),
                      builder_.Literal("]")));
  return *array_;
}

GrammarSymbol JsonGrammar::Any() {
  if (any_) return *any_;
  any_ = builder_.NewRule();
  for (const char* word : {"true", "false", "null"}) builder_.Add(*any_, builder_.Literal(word));
  builder_.Add(*any_, {AnyText()});
  builder_.Add(*any_, {Number()});
  builder_.Add(*any_, {AnyObject()});
  builder_.Add(*any_, {AnyArray()});
  return *any_;
}

}  // namespace kvcache
