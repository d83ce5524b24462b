#include "embedding/pooled_states.h"

#include <cmath>

namespace kvcache {

void PooledStates::Append(std::span<const float> states, std::size_t size) {
  const std::size_t count = states.size() / size;
  if (pooling_ == Pooling::kMean) {
    sum_.resize(size);
    for (std::size_t i = 0; i < states.size(); ++i) sum_[i % size] += states[i];
  } else if (pooling_ == Pooling::kNone) {
    values_.insert(values_.end(), states.begin(), states.end());
  } else if (pooling_ == Pooling::kLast) {
    values_.assign(states.end() - static_cast<std::ptrdiff_t>(size), states.end());
  } else if (tokens_ == 0) {
    values_.assign(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(size));
  }
  tokens_ += static_cast<std::int64_t>(count);
}

std::vector<float> PooledStates::Vectors() const {
  if (pooling_ != Pooling::kMean) return values_;
  std::vector<float> mean;
  mean.reserve(sum_.size());
  for (const double sum : sum_) {
    mean.push_back(static_cast<float>(sum / static_cast<double>(tokens_)));
  }
  return mean;
}

std::vector<float> FinishVectors(std::span<const float> vectors, std::size_t size, std::size_t kept,
                                 bool normalize) {
  std::vector<float> finished;
  finished.reserve(vectors.size() / size * kept);
  for (; !vectors.empty(); vectors = vectors.subspan(size)) {
    double squares = 0.0;
    for (const float value : vectors.first(kept)) squares += double{value} * value;
    const double factor = normalize && squares > 0.0 ? 1.0 / std::sqrt(squares) : 1.0;
    for (const float value : vectors.first(kept)) {
      finished.push_back(static_cast<float>(value * factor));
    }
  }
  return finished;
}

}  // namespace kvcache
