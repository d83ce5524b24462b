#include "grammar/number_range.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace kvcache {
namespace {

// Returns the sign of a - b for magnitudes.
int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.is_zero() || b.is_zero()) return (b.is_zero() ? 0 : -1) + (a.is_zero() ? 0 : 1);
  if (a.exponent != b.exponent) return a.exponent < b.exponent ? -1 : 1;
  return a.digits.compare(b.digits);
}

// Returns number × 10^zeros; none: it is above 10^15.
std::optional<std::int64_t> WithZeros(std::int64_t number, int zeros) {
  constexpr std::int64_t kMax = 1'000'000'000'000'000;
  for (; zeros > 0; --zeros) {
    number *= 10;
    if (number > kMax) return {};
  }
  return number;
}

Decimal DecimalOfText(std::string_view text) {
  Decimal read{.negative = text.starts_with('-')};
  bool behind_point = false;
  std::size_t at = read.negative ? 1 : 0;
  for (; at < text.size() && text[at] != 'e'; ++at) {
    if (text[at] == '.') {
      behind_point = true;
      continue;
    }
    const bool leading = read.digits.empty() && text[at] == '0';
    if (!behind_point && !leading) ++read.exponent;
    if (behind_point && leading) --read.exponent;
    if (!leading) read.digits += text[at];
  }
  if (at < text.size()) {
    std::int64_t exponent = 0;
    at += text[at + 1] == '+' ? 2 : 1;
    (void)std::from_chars(text.data() + at, text.data() + text.size(), exponent);
    read.exponent += exponent;
  }
  while (read.digits.ends_with('0')) read.digits.pop_back();
  return read.is_zero() ? Decimal{} : read;
}

double DoubleOf(const Decimal& number) {
  return std::strtod(StrCat(number.negative ? "-" : "", "0.",
                            number.is_zero() ? "0" : number.digits, "e", number.exponent)
                         .c_str(),
                     nullptr);
}

// Returns all digits of a number.
std::string TextOf(long double number) {
  char text[1200];
  const int length = std::snprintf(text, sizeof text, "%.1100Le", number);
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace

Decimal DecimalOf(const nlohmann::ordered_json& number) {
  return DecimalOfText(number.dump());
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? CompareMagnitudes(b, a) : CompareMagnitudes(a, b);
}

std::optional<DecimalUnit> UnitOf(const Decimal& number) {
  DecimalUnit unit;
  if (number.digits.size() > 6) return {};
  (void)std::from_chars(number.digits.data(), number.digits.data() + number.digits.size(),
                        unit.unit);
  unit.places = static_cast<int>(static_cast<std::int64_t>(number.digits.size()) - number.exponent);
  if (unit.unit > DecimalUnit::kMaxUnit || std::abs(unit.places) > 300) return {};
  return unit;
}

std::optional<DecimalUnit> CommonMultiple(const DecimalUnit& a, const DecimalUnit& b) {
  const int places = std::max(a.places, b.places);
  const auto first = WithZeros(a.unit, places - a.places);
  const auto second = WithZeros(b.unit, places - b.places);
  if (!first || !second) return {};
  const std::int64_t divided = *first / std::gcd(*first, *second);
  if (divided > INT64_MAX / *second) return {};
  DecimalUnit common{divided * *second, places};
  while (common.unit % 10 == 0) {
    common.unit /= 10;
    --common.places;
  }
  if (common.unit > DecimalUnit::kMaxUnit) return {};
  return common;
}

// Halfway to the next double lies the last number that is read as the bound.
NumberRange NumberRange::ForDoubles() const {
  NumberRange range = *this;
  const bool has_fractions = !unit;
  for (auto* const bound : {&range.min, &range.max}) {
    if (!*bound || !(*bound)->exclusive || !has_fractions) continue;
    const long double at = DoubleOf((*bound)->at);
    const double inward = bound == &range.min ? std::numeric_limits<double>::infinity()
                                              : -std::numeric_limits<double>::infinity();
    const long double next = std::nextafter(static_cast<double>(at), inward);
    (*bound)->at = DecimalOfText(TextOf((at + next) / 2));
  }
  const Decimal largest = DecimalOf(std::numeric_limits<double>::max());
  range.AtMost({largest, false});
  range.AtLeast({{true, largest.digits, largest.exponent}, false});
  return range;
}

bool NumberRange::Has(const Decimal& number) const {
  const int above = min ? Compare(number, min->at) : 1;
  const int below = max ? Compare(number, max->at) : -1;
  if (above < 0 || (above == 0 && min->exclusive)) return false;
  if (below > 0 || (below == 0 && max->exclusive)) return false;
  // The number is a whole number of 10^-places, of which the last digit is not 0.
  const std::int64_t places = std::ssize(number.digits) - number.exponent;
  if (fractions_only) return !number.is_zero() && places > 0;
  if (!unit || number.is_zero()) return true;
  if (places > unit->places) return false;
  std::int64_t remainder = 0;
  for (const char digit : number.digits) remainder = (remainder * 10 + (digit - '0')) % unit->unit;
  for (std::int64_t i = places; i < unit->places && remainder != 0; ++i) {
    remainder = remainder * 10 % unit->unit;
  }
  return remainder == 0;
}

void NumberRange::AtLeast(const NumberBound& bound) {
  const int order = min ? Compare(bound.at, min->at) : 1;
  if (order > 0 || (order == 0 && bound.exclusive)) min = bound;
}

void NumberRange::AtMost(const NumberBound& bound) {
  const int order = max ? Compare(bound.at, max->at) : -1;
  if (order < 0 || (order == 0 && bound.exclusive)) max = bound;
}

}  // namespace kvcache
