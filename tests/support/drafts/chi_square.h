// Pearson's test of counts against probabilities.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache::testing {

// Returns by how many standard deviations the statistic of `counts` exceeds its mean, with the normal
// approximation of Wilson and Hilferty. Outcomes that are expected fewer than 5 times count as one.
inline double ChiSquareExcess(std::span<const std::int64_t> counts,
                              std::span<const double> probabilities) {
  double draws = 0.0;
  for (const std::int64_t count : counts) draws += static_cast<double>(count);
  double statistic = 0.0;
  int cells = 0;
  double rare = 0.0;
  double rare_count = 0.0;
  const auto add = [&](double expected, double count) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    const auto count = static_cast<double>(counts[i]);
    if (expected >= 5.0) {
      add(expected, count);
    } else {
      rare += expected;
      rare_count += count;
    }
  }
  if (rare > 0.0) {
    add(rare, rare_count);
  } else if (rare_count > 0.0) {
    return HUGE_VAL;  // something that cannot happen did
  }
  if (cells < 2) return 0.0;
  const double degrees = cells - 1;
  const double spread = 2.0 / (9.0 * degrees);
  return (std::cbrt(statistic / degrees) - (1.0 - spread)) / std::sqrt(spread);
}

}  // namespace kvcache::testing
