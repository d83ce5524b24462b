#include "prefix/return_rates.h"

#include <algorithm>
#include <cmath>

namespace kvcache::prefix {
namespace {

constexpr double kFirst = 50000.0;  // tokens: the end of the first bucket
constexpr double kRatio = 1.5;      // of one bucket's begin to the last one's
constexpr double kPriorReturns = 0.125;
constexpr double kWeightOfAll = 1.8;     // groups, of the prior below
constexpr double kWeightOfFamily = 1.8;  // groups, of the rates of all
constexpr double kWeightOfClass = 6.0;   // groups, of the rates of the family

double Width(int bucket) {
  return bucket == 0 ? kFirst : ReturnRates::BucketBegin(bucket) * (kRatio - 1.0);
}

}  // namespace

ReturnRates::ReturnRates(int classes, int families)
    : family_(static_cast<std::size_t>(classes)),
      classes_(static_cast<std::size_t>(classes)),
      families_(static_cast<std::size_t>(families)),
      worth_(static_cast<std::size_t>(classes)) {
  Refresh();
}

double ReturnRates::BucketBegin(int bucket) {
  return bucket == 0 ? 0.0 : kFirst * std::pow(kRatio, bucket - 1);
}

int ReturnRates::BucketOf(double age) {
  if (age < kFirst) return 0;
  const int bucket = 1 + static_cast<int>(std::log(age / kFirst) / std::log(kRatio));
  return std::min(bucket, kBuckets - 1);
}

void ReturnRates::CountReturn(int of_class, double age, double weight) {
  const auto bucket = static_cast<std::size_t>(BucketOf(age));
  const auto c = static_cast<std::size_t>(of_class);
  classes_[c].returns[bucket] += weight;
  families_[static_cast<std::size_t>(family_[c])].returns[bucket] += weight;
  all_.returns[bucket] += weight;
}

void ReturnRates::CountWait(int of_class, double from_age, double to_age, double weight) {
  const auto c = static_cast<std::size_t>(of_class);
  Counts& family = families_[static_cast<std::size_t>(family_[c])];
  for (int b = BucketOf(from_age); b < kBuckets; ++b) {
    const double begin = std::max(from_age, BucketBegin(b));
    const double end = b + 1 < kBuckets ? std::min(to_age, BucketBegin(b + 1)) : to_age;
    if (begin >= end) break;
    const double wait = (end - begin) * weight;
    const auto bucket = static_cast<std::size_t>(b);
    classes_[c].waits[bucket] += wait;
    family.waits[bucket] += wait;
    all_.waits[bucket] += wait;
  }
}

ReturnRates::Row ReturnRates::Blend(const Counts& counts, const Row& prior, double prior_weight) {
  Row rates{};
  for (int b = 0; b < kBuckets; ++b) {
    const auto i = static_cast<std::size_t>(b);
    const double wait = prior_weight * Width(b);
    rates[i] = (counts.returns[i] + prior[i] * wait) / (counts.waits[i] + wait);
  }
  return rates;
}

// Before anything was seen, the rate falls with age, so that the least recently used goes first.
void ReturnRates::Refresh(Basis basis) {
  Row prior{};
  for (int b = 0; b < kBuckets; ++b) {
    prior[static_cast<std::size_t>(b)] = kPriorReturns / std::max(kFirst / 2, BucketBegin(b));
  }
  if (basis == Basis::kAge) {
    std::fill(worth_.begin(), worth_.end(), prior);
    return;
  }
  const Row all = Blend(all_, prior, kWeightOfAll);
  std::vector<Row> families;
  families.reserve(families_.size());
  for (const Counts& counts : families_) families.push_back(Blend(counts, all, kWeightOfFamily));
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const Row rates =
        Blend(classes_[c], families[static_cast<std::size_t>(family_[c])], kWeightOfClass);
    for (int age = 0; age < kBuckets; ++age) {
      double left = 1.0;  // the share that has not returned yet
      double returns = 0.0;
      double wait = 0.0;
      double best = 0.0;
      for (int b = age; b < kBuckets; ++b) {
        const double rate = rates[static_cast<std::size_t>(b)];
        const double width = Width(b) * (b == age ? 0.5 : 1.0);
        const double stay = std::exp(-rate * width);
        const double returned = left * (1.0 - stay);
        returns += returned;
        wait += rate > 0.0 ? returned / rate : left * width;
        left *= stay;
        best = std::max(best, returns / wait);
      }
      worth_[c][static_cast<std::size_t>(age)] = best;
    }
  }
}

}  // namespace kvcache::prefix
