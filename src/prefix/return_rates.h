// How often prefixes of each class come back, by age: learned from what was used.
//
// The age of a prefix is the number of prompt tokens since its last use. For each class and bucket of
// age, the rate is returns / time at risk. What was evicted counts as well, because its keys are
// remembered (reuse_history.h). So the rates do not depend on what was kept.
//
// Worth(class, bucket) is what a token of that class earns while it stays: the greatest, over all
// horizons, of the expected returns per expected time of waiting. A prefix that returns after a pause
// is worth little at once, more when the pause is nearly over, and nothing afterwards.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache::prefix {

class ReturnRates {
 public:
  static constexpr int kBuckets = 24;

  explicit ReturnRates(int classes, int families);

  // Returns the bucket of an age in tokens, and the age at which a bucket begins.
  static int BucketOf(double age);
  static double BucketBegin(int bucket);

  // Classes of one family (the number of uses) learn from each other while they have seen little.
  void SetFamily(int of_class, int family) { family_[static_cast<std::size_t>(of_class)] = family; }

  // Counts `weight` returns of a prefix of this age.
  void CountReturn(int of_class, double age, double weight);
  // Counts the waiting of `weight` prefixes from one age to another.
  void CountWait(int of_class, double from_age, double to_age, double weight);

  // Returns the worth per token and token of time, of a prefix whose age is in the bucket. Refresh makes
  // it follow the counts.
  double Worth(int of_class, int bucket) const {
    return worth_[static_cast<std::size_t>(of_class)][static_cast<std::size_t>(bucket)];
  }
  enum class Basis : std::uint8_t {
    kCounts,
    kAge
  };  // kAge: the least recently used is worth least
  void Refresh(Basis basis = Basis::kCounts);

 private:
  using Row = std::array<double, kBuckets>;
  struct Counts {
    Row returns{};
    Row waits{};
  };
  static Row Blend(const Counts& counts, const Row& prior, double prior_weight);

  std::vector<int> family_;
  std::vector<Counts> classes_;
  std::vector<Counts> families_;
  Counts all_{};
  std::vector<Row> worth_;
};

}  // namespace kvcache::prefix
