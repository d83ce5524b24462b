// Checks that warm attention and stores neither allocate nor lock, whatever the cache's types. (The
// pool's threads wait on atomics, first spinning, then asleep.)
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/cpu_backend.h"
#include "gtest/gtest.h"
#include "platform/numa/numa_testing.h"
#include "support/counting_locks.h"
#include "support/counting_new.h"

namespace kvcache::cpu::attention_allocation_test {
namespace {

// A pass's inputs, made outside the counted part.
struct Pass {
  std::vector<Position> positions;
  std::vector<std::int32_t> index;
  std::vector<HistoryRun> runs;
  std::vector<std::array<HistoryRun, 2>> forks;
  std::vector<std::span<const HistoryRun>> histories;
  std::vector<float> q;
  std::vector<float> out;

  // With branches each token is a path of its own after a shared prefix of all but 40 positions.
  Pass(const Scene& scene, int tokens, Position length, bool branches = false)
      : runs{{0, 0, length}},
        histories{runs},
        q(static_cast<std::size_t>(tokens * scene.options().heads * 64), 0.5f),
        out(q.size()) {
    for (int i = 0; i < tokens; ++i) positions.push_back(length - tokens + i);
    index.assign(positions.size(), 0);
    if (!branches) return;
    const Position shared = length - 40;
    for (int i = 0; i < tokens; ++i) {
      forks.push_back({{{0, 0, shared}, {shared, shared + i, 1}}});
      positions[static_cast<std::size_t>(i)] = shared;
      index[static_cast<std::size_t>(i)] = i;
    }
    histories.assign(forks.begin(), forks.end());
  }

  Status Run(KvBackend& backend, const Scene& scene) {
    const auto tokens = static_cast<std::int64_t>(positions.size());
    const int heads = scene.options().heads;
    return backend.Attention(scene.layer(),
                             TensorView::Dense(q.data(), DType::kF32, 64, heads, tokens),
                             {.positions = positions,
                              .history_of_query = index,
                              .histories = histories,
                              .bidirectional = {}},
                             {}, TensorView::Dense(out.data(), DType::kF32, 64, heads, tokens));
  }
};

struct Types {
  DType k;
  DType v;
};

constexpr Types kTypes[] = {{DType::kF16, DType::kF16},
                            {DType::kF32, DType::kBF16},
                            {DType::kQ8_0, DType::kQ8_0},
                            {DType::kQ4_0, DType::kQ4_0},
                            {DType::kQ8_0, DType::kF16}};

// Threads on one memory node, and on two.
struct Backends {
  testing::InventedNuma system;
  CpuBackend on_one{4};
  CpuBackend on_two{testing::InventedNodes(2, 4), system};
  std::array<CpuBackend*, 2> all = {&on_one, &on_two};
};

struct Counts {
  std::int64_t allocations = testing::AllocationCount();
  std::optional<std::int64_t> locks = testing::LockCount();
  bool operator==(const Counts&) const = default;
};

// Checks that the count of locks works, if the platform has one.
TEST(AttentionAllocation, LocksAreCounted) {
  const std::optional<std::int64_t> before = testing::LockCount();
  if (!before.has_value()) GTEST_SKIP() << "locks cannot be counted on this platform";
  std::mutex mutex;
  mutex.lock();
  mutex.unlock();
  EXPECT_GE(*testing::LockCount(), *before + 1);
}

TEST(AttentionAllocation, WarmAttentionNeitherAllocatesNorLocks) {
  Backends backends;
  for (std::size_t i = 0; i < 2 * std::size(kTypes); ++i) {
    const Types& types = kTypes[i / 2];
    CpuBackend* const backend = backends.all[i % 2];
    Scene scene({{2, 64, 64}, 4, types.k, types.v}, Scene::Contiguous({2000}));
    scene.Fill(*backend);
    for (const int tokens : {1, 20, 300}) {
      const bool branches = tokens == 20;
      Pass warm(scene, tokens, 2000, branches);
      ASSERT_TRUE(warm.Run(*backend, scene).ok());
      Pass shorter(scene, tokens, 1700, branches);
      const Counts before;
      ASSERT_TRUE(warm.Run(*backend, scene).ok());
      ASSERT_TRUE(shorter.Run(*backend, scene).ok());
      const Counts after;
      EXPECT_EQ(after.allocations - before.allocations, 0)
          << tokens << " " << InfoOf(types.k).name << " " << InfoOf(types.v).name;
      EXPECT_EQ(after.locks, before.locks)
          << tokens << " " << InfoOf(types.k).name << " " << InfoOf(types.v).name;
    }
  }
}

TEST(AttentionAllocation, StoresNeitherAllocateNorLock) {
  Backends backends;
  for (std::size_t i = 0; i < 2 * std::size(kTypes); ++i) {
    const Types& types = kTypes[i / 2];
    CpuBackend* const backend = backends.all[i % 2];
    Scene scene({{2, 64, 64}, 4, types.k, types.v}, Scene::Contiguous({2000}));
    std::vector<float> rows(2 * 64 * 300);
    const auto store = [&](std::int32_t tokens) {
      const TensorView view = TensorView::Dense(rows.data(), DType::kF32, 64, 2, tokens);
      const CellRun cells[] = {{7, tokens}};
      return backend->StoreKv(scene.layer(), view, view, cells);
    };
    ASSERT_TRUE(store(300).ok());
    for (const std::int32_t tokens : {1, 300}) {
      const Counts before;
      ASSERT_TRUE(store(tokens).ok());
      EXPECT_EQ(Counts(), before) << tokens << " " << InfoOf(types.k).name;
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu::attention_allocation_test
