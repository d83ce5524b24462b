// The process's resident size follows what a cache with a budget counts. Runs with KVCACHE_SLOW_TESTS.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "engine/scheduler/memory_governor.h"
#include "support/scheduler_fixture.h"

namespace kvcache::resident_size_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Returns the bytes of memory that the process takes, page by page.
std::int64_t ResidentSize() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    std::int64_t kib = 0;
    if (word == "Rss:" && file >> kib) return kib * 1024;
  }
  return -1;
}

class ResidentSizeTest : public SchedulerFixture {
 protected:
  // 64 KiB of keys and values per token: 256 MiB are 4096 tokens.
  void SetUp() override {
    if (std::getenv("KVCACHE_SLOW_TESTS") == nullptr) GTEST_SKIP() << "KVCACHE_SLOW_TESTS is unset";
    path_ = ::testing::TempDir() + "resident." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = GetParam(), .type = DType::kF32};
    request.shape.layers = 4;
    request.shape.hidden_size = 64;
    request.shape.heads = 16;
    request.shape.kv_heads = 16;
    request.shape.head_dim = 256;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    alone_ = Open({.threads = 2, .context = kContext, .prefill_chunk = 64});
  }

  void StartWith(SchedulerOptions options) {
    scheduler_.reset();
    engine_ = Open({.threads = 2,
                    .context = kContext,
                    .max_sequences = 4,
                    .pool_tokens = 16384,
                    .releases_memory = true,
                    .prefill_chunk = 64});
    auto scheduler = Scheduler::Make(*engine_, options);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(scheduler).value();
    // Weights, code and workspaces are resident after a request.
    Ask(SomeTokens(240), 8);
    RunAll();
    asked_.clear();
    while (scheduler_->prefixes().Evict(1 << 20) >= 0) {
    }
    ASSERT_TRUE(engine_->cache().memory()->ReleaseFreeMemory().ok());
    others_ = ResidentSize() - engine_->cache().memory()->ResidentBytes();
  }

  void ExpectSizeFollows() {
    const std::int64_t counted = engine_->cache().memory()->ResidentBytes();
    if (counted < 64 * kMiB) return;
    const std::int64_t taken = ResidentSize() - others_;
    EXPECT_LE(taken, counted + counted / 20);
    EXPECT_GE(taken, counted - counted / 20);
    ++compared_;
  }

  void AskRandom() {
    Tokens prompt;
    for (int more = 50 + static_cast<int>(random_() % 180); more > 0; --more)
      prompt.push_back(3 + static_cast<int>(random_() % 200));
    Ask(std::move(prompt), static_cast<int>(random_() % 8));
  }

  std::mt19937 random_{1};
  std::int64_t others_ = 0;  // bytes of the process besides the cache's
  int compared_ = 0;
};

TEST_P(ResidentSizeTest, FollowsAFixedBudget) {
  const std::int64_t budget = 256 * kMiB;
  StartWith({.recompute_bound = 32, .budget_bytes = budget, .free_memory_share = 0.0});
  std::int64_t max = 0;
  for (int request = 0; request < 60; ++request) {
    AskRandom();
    for (int steps = 0; steps < 3; ++steps) {
      (void)*scheduler_->Step();
      ASSERT_LE(Held(), budget);
      ExpectSizeFollows();
      max = std::max(max, engine_->cache().memory()->ResidentBytes());
    }
  }
  RunAll();
  EXPECT_GT(max, budget * 9 / 10);
  EXPECT_GT(compared_, 50);
  for (const auto& asked : asked_) EXPECT_TRUE(asked->result.status.ok());
}

TEST_P(ResidentSizeTest, FollowsABudgetThatShrinksAndGrows) {
  std::int64_t limit = 256 * kMiB;
  StartWith({.recompute_bound = 32,
             .free_memory_share = 1.0,
             .available_memory = [&]() -> std::optional<std::int64_t> {
               return limit - engine_->cache().memory()->ResidentBytes();
             }});
  for (const std::int64_t next : {256, 128, 96, 200, 64, 256}) {
    limit = next * kMiB;
    std::this_thread::sleep_for(MemoryGovernor::kInterval);
    for (int request = 0; request < 12; ++request) {
      AskRandom();
      for (int steps = 0; steps < 3; ++steps) {
        (void)*scheduler_->Step();
        ASSERT_LE(engine_->cache().memory()->ResidentBytes(), limit);
        ExpectSizeFollows();
      }
    }
  }
  RunAll();
  EXPECT_GT(compared_, 50);
  for (const auto& asked : asked_) EXPECT_TRUE(asked->result.status.ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResidentSizeTest, ::testing::Values("llama"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::resident_size_test
