#include "grammar/decimal_grammar.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace kvcache {
namespace {

constexpr std::int64_t kMostDivisor = 200;

std::int64_t Power(int exponent) {
  std::int64_t power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

// Returns the smallest integer that is not below a / b. REQUIRES: b > 0.
std::int64_t CeilingOf(std::int64_t a, std::int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}
std::int64_t FloorOf(std::int64_t a, std::int64_t b) {
  return -CeilingOf(-a, b);
}

// Returns the number times 10^places, rounded to an integer.
std::int64_t Scaled(const Decimal& number, int places,
                    std::int64_t (*round)(std::int64_t, std::int64_t)) {
  if (number.places <= places) return number.units * Power(places - number.places);
  return round(number.units, Power(number.places - places));
}

bool IsAt(const Decimal& number, int places, std::int64_t scaled) {
  return number.places <= places && Scaled(number, places, CeilingOf) == scaled;
}

// The digits of integers whose last `places` stand behind the point, and which `divisor` divides.
class Digits {
 public:
  Digits(int places, std::int64_t divisor, GrammarBuilder& builder)
      : places_(places), divisor_(divisor), builder_(builder) {}

  // Adds the integers from `least` to `most`, which are not negative, behind `sign`.
  void Add(GrammarSymbol rule, std::string_view sign, std::int64_t least, std::int64_t most) {
    for (int length = places_ + 1; length <= 19; ++length) {
      const bool shortest = length == places_ + 1;  // begins with 0, perhaps
      const std::int64_t first = std::max(least, shortest ? 0 : Power(length - 1));
      const std::int64_t last = length == 19 ? most : std::min(most, Power(length) - 1);
      if (first > last) continue;
      const GrammarSequence text = Between(Padded(first, length), Padded(last, length), 0);
      builder_.Add(rule, Joined(builder_.Literal(sign), text));
    }
  }

 private:
  static std::string Padded(std::int64_t number, int length) {
    const std::string digits = std::to_string(number);
    return std::string(static_cast<std::size_t>(length) - digits.size(), '0') + digits;
  }

  // Returns what follows a set of digits: the point, perhaps, and the rest.
  GrammarSequence After(const ByteSet& digits, int left, const GrammarSequence& rest) {
    GrammarSequence text = {builder_.Bytes(digits)};
    if (left == places_ && left > 0) text = Joined(std::move(text), builder_.Literal("."));
    return Joined(std::move(text), rest);
  }

  // Returns any `left` digits that make a multiple behind digits with this remainder.
  GrammarSymbol Any(int left, std::int64_t remainder) {
    const auto [known, is_new] = any_.try_emplace({left, remainder});
    if (!is_new) return known->second;
    const GrammarSymbol rule = known->second = builder_.NewRule();
    if (left == 0) {
      if (remainder == 0) builder_.Add(rule, {});
      return rule;
    }
    std::map<std::int64_t, ByteSet> digits;  // by what they leave
    for (int digit = 0; digit < 10; ++digit) {
      digits[(remainder * 10 + digit) % divisor_].set(static_cast<std::size_t>('0' + digit));
    }
    for (const auto& [next, set] : digits) {
      builder_.Add(rule, After(set, left - 1, {Any(left - 1, next)}));
    }
    return rule;
  }

  // Returns the digits between two numbers of the same length.
  GrammarSequence Between(std::string_view least, std::string_view most, std::int64_t remainder) {
    const auto left = static_cast<int>(least.size());
    const bool any =
        least.find_first_not_of('0') == least.npos && most.find_first_not_of('9') == most.npos;
    if (any) return {Any(left, remainder)};
    const GrammarSymbol rule = builder_.NewRule();
    const std::string zeros(least.size() - 1, '0');
    const std::string nines(least.size() - 1, '9');
    for (char digit = least[0]; digit <= most[0]; ++digit) {
      ByteSet set;
      set.set(static_cast<std::size_t>(digit));
      const GrammarSequence rest =
          Between(digit == least[0] ? least.substr(1) : std::string_view(zeros),
                  digit == most[0] ? most.substr(1) : std::string_view(nines),
                  (remainder * 10 + (digit - '0')) % divisor_);
      builder_.Add(rule, After(set, left - 1, rest));
    }
    return {rule};
  }

  const int places_;
  const std::int64_t divisor_;
  GrammarBuilder& builder_;
  std::map<std::pair<int, std::int64_t>, GrammarSymbol> any_;
};

// Returns the integer that divides units of 10^-places if `multiple` divides the number.
std::int64_t DivisorAt(const Decimal& multiple, int places) {
  if (multiple.units == 0) return 1;
  const int most = std::max(places, multiple.places);
  const std::int64_t unit = Power(most - places);
  const std::int64_t divisor = multiple.units * Power(most - multiple.places);
  return divisor / std::gcd(unit, divisor);
}

}  // namespace

std::optional<Decimal> ReadDecimal(const nlohmann::ordered_json& number) {
  const std::string text = number.dump();
  Decimal read;
  bool behind_point = false;
  std::size_t at = text.starts_with('-') ? 1 : 0;
  for (; at < text.size() && text[at] != 'e'; ++at) {
    if (text[at] == '.') {
      behind_point = true;
      continue;
    }
    if (read.units > kMostDecimal * 100'000) return {};
    read.units = read.units * 10 + (text[at] - '0');
    read.places += behind_point ? 1 : 0;
  }
  if (at < text.size()) {
    int exponent = 0;
    at += text[at + 1] == '+' ? 2 : 1;
    (void)std::from_chars(text.data() + at, text.data() + text.size(), exponent);
    read.places -= exponent;
  }
  while (read.units % 10 == 0 && read.places > 0 && read.units != 0) {
    read.units /= 10;
    --read.places;
  }
  if (read.units == 0) return Decimal{};
  for (; read.places < 0; ++read.places) {
    if (read.units > kMostDecimal) return {};
    read.units *= 10;
  }
  if (read.places > kMostPlaces || read.units / Power(read.places) >= kMostDecimal) return {};
  if (text.starts_with('-')) read.units = -read.units;
  return read;
}

std::optional<GrammarSymbol> Decimals(const DecimalRange& range, GrammarBuilder& builder) {
  const GrammarSymbol rule = builder.NewRule();
  for (int places = 0; places <= range.places; ++places) {
    const std::int64_t divisor = DivisorAt(range.multiple, places);
    if (divisor > kMostDivisor) return {};
    std::int64_t least = Scaled(range.least, places, CeilingOf);
    std::int64_t most = Scaled(range.most, places, FloorOf);
    if (range.above_least && IsAt(range.least, places, least)) ++least;
    if (range.below_most && IsAt(range.most, places, most)) --most;
    Digits digits(places, divisor, builder);
    digits.Add(rule, "", std::max<std::int64_t>(least, 0), most);
    digits.Add(rule, "-", std::max<std::int64_t>(-most, 1), -least);
  }
  return rule;
}

}  // namespace kvcache
