// Decimal numbers of a range, and of these the multiples of a number, as grammar.
//
// A number with n digits after the point is an integer, which is read digit by digit: what is left of a bound
// and the remainder by the divisor are the state.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "grammar/grammar.h"

namespace kvcache {

// units / 10^places. `units` does not end with 0 if there are places.
struct Decimal {
  std::int64_t units = 0;
  int places = 0;
};

inline constexpr int kMostPlaces = 6;
inline constexpr std::int64_t kMostDecimal = 1'000'000'000'000;

// Returns a number of JSON as it is written in decimal; none: it has more than 6 digits after the point, or is
// larger than 10^12.
std::optional<Decimal> ReadDecimal(const nlohmann::ordered_json& number);

struct DecimalRange {
  Decimal least{-kMostDecimal, 0};
  Decimal most{kMostDecimal, 0};
  bool above_least = false;  // without `least` itself
  bool below_most = false;
  Decimal multiple{0, 0};  // 0: any number
  int places = 0;          // at most so many digits after the point
};

// Returns the numbers of a range; none: the multiples need too large a grammar.
std::optional<GrammarSymbol> Decimals(const DecimalRange& range, GrammarBuilder& builder);

}  // namespace kvcache
