// Pools over several invented memory nodes.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "platform/numa/numa_testing.h"
#include "platform/thread_pool.h"

namespace kvcache::thread_pool_nodes_test {
namespace {

using testing::InventedNodes;
using testing::InventedNuma;
using testing::NodeOfInvented;

// (nodes, threads)
class ThreadPoolNodesTest : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static int Nodes() { return std::get<0>(GetParam()); }
  static int Threads() { return std::get<1>(GetParam()); }
  void SetUp() override { InventedNuma::Here() = 0; }

  InventedNuma system_;
  ThreadPool pool_{InventedNodes(Nodes(), Threads()), system_};
};

TEST_P(ThreadPoolNodesTest, HasTheThreadsOfAllNodes) {
  EXPECT_EQ(pool_.nodes(), Nodes());
  EXPECT_EQ(pool_.threads(), Threads());
  int threads = 0;
  for (int node = 0; node < Nodes(); ++node) threads += pool_.threads_of(node);
  EXPECT_EQ(threads, Threads());
  EXPECT_EQ(system_.pins.load(), Nodes() == 1 ? 0 : Threads() - 1) << "one node: no change";
  EXPECT_EQ(pool_.pin_error(), "");
}

TEST_P(ThreadPoolNodesTest, PartsAreInProportion) {
  for (const std::int64_t count : {0, 1, 2, 7, 64, 1001}) {
    EXPECT_EQ(pool_.PartBegin(count, 0), 0);
    EXPECT_EQ(pool_.PartBegin(count, Nodes()), count);
    for (int node = 0; node < Nodes(); ++node) {
      const std::int64_t part = pool_.PartBegin(count, node + 1) - pool_.PartBegin(count, node);
      const std::int64_t exact = count * pool_.threads_of(node) / Threads();
      EXPECT_LE(std::abs(part - exact), 1);
    }
  }
}

// Random loops in a row, of both kinds, with homes of all sorts, also without any task, from all nodes.
TEST_P(ThreadPoolNodesTest, RunsEachTaskOnce) {
  std::mt19937 random(static_cast<unsigned>(Nodes() * 100 + Threads()));
  for (int loop = 0; loop < 200; ++loop) {
    ThreadPool::Ends ends{};
    std::int64_t tasks = 0;
    for (int node = 0; node < Nodes(); ++node) {
      tasks += random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 20);
      ends[static_cast<std::size_t>(node)] = tasks;
    }
    InventedNuma::Here() = static_cast<int>(random() % 4) * 100;  // 3 is of no node sometimes
    const TakenBy taken_by = random() % 2 == 0 ? TakenBy::kAnyNode : TakenBy::kHomeNode;
    std::vector<int> runs(static_cast<std::size_t>(tasks), 0);  // plain ints: TSan looks on
    const auto body = [&](std::int64_t task, int thread) {
      ASSERT_LT(thread, Threads());
      ++runs[static_cast<std::size_t>(task)];
    };
    if (random() % 2 == 0) {
      pool_.ParallelFor(ends, body, taken_by);
    } else {
      pool_.ParallelFor(tasks, body, taken_by);
    }
    ASSERT_EQ(std::count(runs.begin(), runs.end(), 1), tasks) << loop;
  }
}

TEST_P(ThreadPoolNodesTest, TasksThatPlaceMemoryRunAtHome) {
  if (Threads() < Nodes()) GTEST_SKIP() << "not all nodes have threads";
  for (int caller = 0; caller < Nodes(); ++caller) {
    InventedNuma::Here() = caller * 100;
    constexpr std::int64_t kTasks = 500;
    std::vector<int> ran_on(kTasks, -1);
    pool_.ParallelFor(
        kTasks,
        [&](std::int64_t task, int) {
          ran_on[static_cast<std::size_t>(task)] = NodeOfInvented(InventedNuma::Here());
        },
        TakenBy::kHomeNode);
    for (int node = 0; node < Nodes(); ++node) {
      // The first node has no worker if the caller is its only thread.
      if (node == 0 && pool_.threads_of(0) == 1 && caller != 0) continue;
      for (std::int64_t task = pool_.PartBegin(kTasks, node);
           task < pool_.PartBegin(kTasks, node + 1); ++task) {
        ASSERT_EQ(ran_on[static_cast<std::size_t>(task)], node) << task;
      }
    }
  }
}

// Threads of other nodes take what is left of a node whose threads are busy.
TEST_P(ThreadPoolNodesTest, OtherNodesHelp) {
  if (Nodes() == 1 || Threads() < 2) return;
  ThreadPool::Ends ends{};
  ends.fill(Threads());  // all at home on the first node
  std::atomic<int> arrived{0};
  pool_.ParallelFor(ends, [&](std::int64_t, int) {
    arrived.fetch_add(1);
    while (arrived.load() < Threads()) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), Threads());
}

TEST_P(ThreadPoolNodesTest, TasksOfAHomeStartInAscendingOrder) {
  std::vector<std::atomic<std::int64_t>> last(static_cast<std::size_t>(Nodes() * Threads()));
  for (auto& each : last) each.store(-1);
  constexpr std::int64_t kTasks = 1000;
  pool_.ParallelFor(kTasks, [&](std::int64_t task, int thread) {
    int home = 0;
    while (task >= pool_.PartBegin(kTasks, home + 1)) ++home;
    auto& before = last[static_cast<std::size_t>(home * Threads() + thread)];
    EXPECT_LT(before.exchange(task), task);
  });
}

INSTANTIATE_TEST_SUITE_P(Nodes, ThreadPoolNodesTest,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(4, 5, 8, 64)));

// Fewer threads than nodes: some nodes have none and are left out.
TEST(ThreadPoolNodes, FewThreads) {
  InventedNuma system;
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(InventedNodes(4, threads), system);
    EXPECT_EQ(pool.nodes(), threads);
    std::atomic<int> runs{0};
    pool.ParallelFor(
        100, [&](std::int64_t, int) { runs.fetch_add(1); }, TakenBy::kHomeNode);
    EXPECT_EQ(runs.load(), 100);
  }
}

TEST(ThreadPoolNodes, ThreadsThatCannotBePinnedRunAllTheSame) {
  InventedNuma system;
  system.pin_error = "sched_setaffinity: Operation not permitted";
  ThreadPool pool(InventedNodes(2, 6), system);
  EXPECT_EQ(pool.pin_error(), system.pin_error);
  EXPECT_EQ(pool.nodes(), 2);
  std::atomic<int> runs{0};
  pool.ParallelFor(
      1000, [&](std::int64_t, int) { runs.fetch_add(1); }, TakenBy::kHomeNode);
  EXPECT_EQ(runs.load(), 1000);
}

// Sanitizers map more address space than the test leaves.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVCACHE_IS_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVCACHE_IS_SANITIZED
#endif
#if defined(__linux__) && !defined(KVCACHE_IS_SANITIZED)
// Ends with 0 if a pool of three nodes, of which the system starts few threads, counts those alone.
void CheckAFewThreads() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  // Address space for the stacks of some threads.
  const auto now = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE));
  const rlimit limit{.rlim_cur = now + (rlim_t{30} << 20), .rlim_max = RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
  InventedNuma system;
  ThreadPool pool(InventedNodes(3, 60), system);
  int threads = 0;
  for (int node = 0; node < pool.nodes(); ++node) threads += pool.threads_of(node);
  std::atomic<int> runs{0};
  pool.ParallelFor(
      100, [&](std::int64_t, int) { runs.fetch_add(1); }, TakenBy::kHomeNode);
  const bool is_right = pool.threads() < 20 && threads == pool.threads() &&
                        pool.threads_of(0) == threads && pool.threads_of(2) == 0 &&
                        pool.PartBegin(100, 1) == 100 && runs.load() == 100;
  std::_Exit(is_right ? 0 : 1);
}

TEST(ThreadPoolNodesDeathTest, CountsTheThreadsThatStarted) {
  EXPECT_EXIT(CheckAFewThreads(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(ThreadPoolNodes, ManyThreads) {
  InventedNuma system;
  for (const int threads : {96, 128}) {
    ThreadPool pool(InventedNodes(4, threads), system);
    ASSERT_EQ(pool.threads(), threads);
    std::vector<std::int64_t> values(333, 0);
    for (int loop = 0; loop < 50; ++loop) {
      pool.ParallelFor(static_cast<std::int64_t>(values.size()),
                       [&](std::int64_t task, int) { ++values[static_cast<std::size_t>(task)]; });
    }
    EXPECT_EQ(std::set<std::int64_t>(values.begin(), values.end()), std::set<std::int64_t>{50});
  }
}

}  // namespace
}  // namespace kvcache::thread_pool_nodes_test
