// Decimal numbers of any size, and which of them a schema allows.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kvcache {

// ±0.DIGITS × 10^exponent. Neither end of the digits is 0; no digits: zero.
struct Decimal {
  bool negative = false;
  std::string digits{};
  std::int64_t exponent = 0;

  bool is_zero() const { return digits.empty(); }
};

// Returns a number of JSON, exactly as it is written in the fewest digits.
Decimal DecimalOf(const nlohmann::ordered_json& number);
// Returns a number below, at or above 0 if a is below, equal to or above b.
int Compare(const Decimal& a, const Decimal& b);

// unit × 10^-places, which divides all numbers of a range. `unit` does not end with 0.
struct DecimalUnit {
  static constexpr std::int64_t kMaxUnit = 10'000;
  std::int64_t unit = 1;
  int places = 0;
  friend bool operator==(const DecimalUnit&, const DecimalUnit&) = default;
};

// Returns a number above 0 as a unit, or the smallest unit that both divide; none: it is too large.
std::optional<DecimalUnit> UnitOf(const Decimal& number);
std::optional<DecimalUnit> CommonMultiple(const DecimalUnit& a, const DecimalUnit& b);

struct NumberBound {
  Decimal at{};
  bool exclusive = false;
};

struct NumberRange {
  std::optional<NumberBound> min{};
  std::optional<NumberBound> max{};
  std::optional<DecimalUnit> unit{};  // a whole number: {1, 0}
  bool fractions_only = false;        // without whole numbers. REQUIRES: no unit
  bool digits_only = false;           // without points and exponents

  // Returns the range of those numbers that readers with doubles also find in it: they read a number close to an
  // exclusive bound as the bound, and one of 310 digits as none.
  NumberRange ForDoubles() const;

  bool Has(const Decimal& number) const;

  // Make the range smaller.
  void AtLeast(const NumberBound& bound);
  void AtMost(const NumberBound& bound);
};

}  // namespace kvcache
