// Checks a custom cache kind with the conformance kit.
//
// quota_cache.h is the kind. The reference model below defines its behaviour. The kit makes random
// scripts of calls on small caches of many sizes and layouts, runs them on both, and compares
// everything that can be observed. The program then repeats this with a bug in the kind. The kit
// must find the bug, and prints the shortest script that shows it.
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "quota_cache.h"
#include "support/cache_driver.h"
#include "support/causal_reference.h"
#include "support/script_random.h"

namespace {

using kvcache::Cache;
using kvcache::Position;
using kvcache::StatusCode;
using namespace kvcache::testing;

// The same kind with an off-by-one error.
class BuggyQuotaCache : public example::QuotaCache {
 public:
  using QuotaCache::QuotaCache;

 protected:
  bool Allows(Position position) const override { return position <= quota_; }
};

// The causal reference model without tokens at or past the quota.
template <typename Kind>
class QuotaReference : public CausalReference {
 public:
  QuotaReference(const ReferenceSetup& setup, Position quota)
      : CausalReference(setup, {}), quota_(quota) {}

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override {
    return std::make_unique<Kind>(CausalReference::MakeCache(backend), quota_);
  }
  StatusCode Prepare(const TestBatch& batch, kvcache::ForwardMode mode) const override {
    const bool computes = mode == kvcache::ForwardMode::kCompute;
    for (const TestToken& token : batch.tokens) {
      if (computes && token.position >= quota_) return StatusCode::kCacheFull;
    }
    return CausalReference::Prepare(batch, mode);
  }
  bool CanResume(int sequence, Position position) const override {
    return position < quota_ && CausalReference::CanResume(sequence, position);
  }

 private:
  Position quota_;
};

template <typename Kind>
DriverSetup RandomQuotaSetup(std::mt19937& random) {
  DriverSetup setup = RandomSizes(random);
  const Position quota = 1 + static_cast<Position>(random() % 8);
  setup.kind = "quota of " + std::to_string(quota);
  setup.snapshots = false;  // this kind has none
  setup.transactions = false;
  setup.make_reference = [quota](const ReferenceSetup& reference) {
    return std::make_unique<QuotaReference<Kind>>(reference, quota);
  };
  return setup;
}

// Runs `steps` random steps. Returns the shortest failing script, or "".
template <typename Kind>
std::string Check(int steps) {
  std::mt19937 random(1);
  for (int done = 0; done < steps;) {
    const DriverSetup setup = RandomQuotaSetup<Kind>(random);
    CacheDriver driver(setup);
    Script script;
    for (int i = 0; i < 100; ++i, ++done) {
      script.push_back(RandomStep(setup, driver, random));
      if (!driver.Step(script.back()).has_value()) continue;
      const Script shortest = Shrink(
          script, [&](const Script& smaller) { return RunScript(setup, smaller).has_value(); });
      return ToText(setup) + "\n" + ToText(shortest) + RunScript(setup, shortest)->what;
    }
  }
  return "";
}

}  // namespace

int main() {
  constexpr int kSteps = 20000;
  const std::string failure = Check<example::QuotaCache>(kSteps);
  if (!failure.empty()) {
    std::fprintf(stderr, "custom_kind: %s\n", failure.c_str());
    return 1;
  }
  std::printf("%d steps agree with the reference model\n", kSteps);
  const std::string found = Check<BuggyQuotaCache>(kSteps);
  std::printf("\nwith a bug in it:\n%s\n", found.c_str());
  return found.empty() ? 1 : 0;
}
