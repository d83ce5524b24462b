#include "kvcache/pass_load.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvcache {
namespace {

constexpr double kNewestLoad = 0.1;  // weight of the last measurement
constexpr double kExpertGrowth =
    0.85;  // of the logarithm of experts by that of rows, before two sizes
constexpr double kRowLoad = 1.0 / 16;  // what a row costs beside its experts

}  // namespace

void PassLoad::Count(int rows, std::int64_t experts) {
  if (experts <= 0 || rows < 1 || rows > kExact) return;
  has_experts_ = true;
  double& mean = experts_[static_cast<std::size_t>(rows - 1)];
  mean += (mean == 0.0 ? 1.0 : kNewestLoad) * (static_cast<double>(experts) - mean);
}

double PassLoad::Experts(double rows) const {
  const double at = std::log(rows);
  const auto row_of = [](int index) { return std::log(static_cast<double>(index + 1)); };
  int low = -1;     // the last measured size up to `rows`
  int before = -1;  // the one before it
  int high = -1;    // the first one above
  for (int i = 0; i < kExact; ++i) {
    if (experts_[static_cast<std::size_t>(i)] == 0.0) continue;
    if (static_cast<double>(i + 1) <= rows) {
      before = low;
      low = i;
    } else if (high < 0) {
      high = i;
    }
  }
  const auto log_of = [&](int i) { return std::log(experts_[static_cast<std::size_t>(i)]); };
  double slope = kExpertGrowth;
  if (low >= 0 && high >= 0) {
    slope = (log_of(high) - log_of(low)) / (row_of(high) - row_of(low));
  } else if (low >= 0 && before >= 0) {
    slope = (log_of(low) - log_of(before)) / (row_of(low) - row_of(before));
  }
  const int from = low >= 0 ? low : high;
  return std::exp(log_of(from) + std::clamp(slope, 0.0, 1.0) * (at - row_of(from)));
}

double PassLoad::Of(double rows) const {
  if (!has_experts_) return rows;
  const double few = std::min<double>(rows, kExact);
  return Experts(few) / Experts(1.0) + kRowLoad * (rows - 1.0);
}

}  // namespace kvcache
