#include "model/graph/attention/query_factors.h"

#include <algorithm>
#include <cmath>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {

Status QueryFactors::Reserve(int max_batch) {
  return Guarded(
      [&] { return StrCat("no memory for the query factors of ", max_batch, " tokens"); },
      [&] { factors_.resize(std::max(factors_.size(), static_cast<std::size_t>(max_batch))); });
}

std::span<const float> QueryFactors::At(std::span<const Position> positions) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const double lengths = std::floor((1.0 * positions[i] + offset_) / length_);
    factors_[i] = static_cast<float>(1.0 + scale_ * arithmetic::Log1p(lengths));
  }
  return std::span(factors_).first(positions.size());
}

}  // namespace kvcache
