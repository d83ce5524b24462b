// Fails random allocations of a prefix cache. Its structure stays whole, it owns the states that were
// given to it, and lets all of them go.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "support/counting_new.h"

namespace kvcache::testing::prefix_fault_test {
namespace {

using Keys = std::vector<PrefixKey>;

// The states that exist. Its own allocations do not fail.
class States : public PrefixStates {
 public:
  PrefixState Add() {
    held.insert(++last);
    return PrefixState{last};
  }
  void Drop(PrefixState state) override {
    EXPECT_EQ(held.erase(static_cast<std::uint64_t>(state)), 1U);
  }
  bool Truncate(PrefixState state, Position) override {
    return held.contains(static_cast<std::uint64_t>(state));
  }

  std::set<std::uint64_t> held;
  std::uint64_t last = 0;
};

class PrefixFaultTest : public ::testing::TestWithParam<bool> {
 protected:
  std::size_t Pick(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  Keys MakePrompt() {
    Keys keys;
    if (!texts_.empty() && Pick(4) > 0) {
      keys = texts_[Pick(texts_.size())];
      keys.resize(Pick(keys.size() + 1));
    }
    for (std::size_t more = 1 + Pick(150); more > 0; --more) keys.push_back(Pick(3));
    return keys;
  }

  // Runs f with one of its allocations failing, perhaps. Returns whether one did.
  template <class F>
  bool WithFailure(F&& f) {
    if (Pick(2) == 0) FailAllocation(static_cast<int>(1 + Pick(12)));
    const bool asked = AllocationFailurePending();
    f();
    const bool fired = asked && !AllocationFailurePending();
    FailAllocation(0);
    fired_ += fired ? 1 : 0;
    return fired;
  }

  // One request from its beginning to its end.
  void Ask() {
    Keys keys = MakePrompt();
    const Keys answer(Pick(20), 1);
    Result<PrefixPlan> plan = Status(StatusCode::kNotFound, "");
    const bool fired = WithFailure([&] { plan = cache_->Begin({.keys = keys}, now_); });
    if (!plan.ok()) {
      ASSERT_TRUE(fired);
      ASSERT_EQ(plan.status().code(), StatusCode::kOutOfMemory);
      return;
    }
    if (plan->resumed > 0) {
      ASSERT_TRUE(states_.held.contains(static_cast<std::uint64_t>(plan->state)));
    }
    if (Pick(10) == 0) WithFailure([&] { (void)cache_->NotRestored(plan->request); });
    for (const Position at : plan->captures) Extend(plan->request, at);
    Status appended;
    WithFailure([&] { appended = cache_->Append(plan->request, answer); });
    if (appended.ok()) keys.insert(keys.end(), answer.begin(), answer.end());
    Extend(plan->request, static_cast<Position>(keys.size()));
    WithFailure([&] { cache_->Close(plan->request, now_); });
    texts_.push_back(std::move(keys));
    if (texts_.size() > 20) texts_.erase(texts_.begin());
  }

  void Extend(PrefixRequest request, Position length) {
    const PrefixState state = states_.Add();
    Status status;
    const bool fired = WithFailure([&] { status = cache_->Extend(request, length, state); });
    ASSERT_TRUE(status.ok() || fired) << status.message();
  }

  std::mt19937_64 random_{GetParam() ? 1U : 2U};
  States states_;
  std::vector<Keys> texts_;
  double now_ = 0.0;
  int fired_ = 0;
  std::unique_ptr<PrefixCache> cache_ = *PrefixCache::Make(
      states_, {.divisible = GetParam(), .recompute_bound = 16, .state_tokens = 4});
};

TEST_P(PrefixFaultTest, KeepsItsStructure) {
  for (int step = 0; step < 1500 && !HasFatalFailure(); ++step) {
    now_ += 1.0;
    Ask();
    const Keys keys = MakePrompt();
    if (Pick(4) == 0) WithFailure([&] { (void)cache_->Pin({.keys = keys}, now_ + 3.0); });
    WithFailure([&] {
      while (cache_->Stats().tokens > 2000 && cache_->Evict(50) >= 0) {
      }
    });
    ASSERT_EQ(cache_->CheckStructure(), "") << "step " << step;
    ASSERT_EQ(cache_->Stats().states, static_cast<std::int64_t>(states_.held.size()));
  }
  EXPECT_GT(fired_, 500);
  now_ += 100.0;
  cache_->Close(PrefixRequest{0}, now_);
  while (cache_->Evict(1 << 20) >= 0) {
  }
  EXPECT_EQ(cache_->Stats().tokens, 0);
  EXPECT_TRUE(states_.held.empty());
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrefixFaultTest, ::testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Divisible" : "Exact"; });

}  // namespace
}  // namespace kvcache::testing::prefix_fault_test
