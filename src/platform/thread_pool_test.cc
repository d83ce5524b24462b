#include "platform/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

namespace kvcache::thread_pool_test {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEachTaskOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const std::int64_t tasks : {0, 1, 2, 3, 16, 1000}) {
    std::vector<int> runs(static_cast<std::size_t>(tasks), 0);  // plain ints: TSan looks on
    pool.ParallelFor(tasks,
                     [&](std::int64_t task, int) { ++runs[static_cast<std::size_t>(task)]; });
    EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), tasks);
  }
}

TEST_P(ThreadPoolTest, ThreadIndexTellsConcurrentTasksApart) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(static_cast<std::size_t>(GetParam()));
  std::atomic<int> clashes{0};
  pool.ParallelFor(2000, [&](std::int64_t, int thread) {
    ASSERT_GE(thread, 0);
    ASSERT_LT(thread, GetParam());
    std::atomic<int>& here = inside[static_cast<std::size_t>(thread)];
    if (here.fetch_add(1) != 0) clashes.fetch_add(1);
    here.fetch_sub(1);
  });
  EXPECT_EQ(clashes.load(), 0);
}

// Each loop reads what the last one wrote: a task that ran twice, late or never would show.
TEST_P(ThreadPoolTest, ManyTinyLoopsInARow) {
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> values(7);
  std::iota(values.begin(), values.end(), 0);
  constexpr int kLoops = 5000;
  for (int loop = 0; loop < kLoops; ++loop) {
    const std::int64_t tasks = 1 + loop % 7;
    pool.ParallelFor(tasks,
                     [&](std::int64_t task, int) { values[static_cast<std::size_t>(task)] += 10; });
  }
  for (std::int64_t i = 0; i < 7; ++i) {
    std::int64_t expected = i;
    for (int loop = 0; loop < kLoops; ++loop) expected += i < 1 + loop % 7 ? 10 : 0;
    EXPECT_EQ(values[static_cast<std::size_t>(i)], expected) << i;
  }
}

// Workers have gone to sleep between these loops.
TEST_P(ThreadPoolTest, WakesAfterSleep) {
  ThreadPool pool(GetParam());
  std::int64_t sum = 0;
  for (int loop = 0; loop < 20; ++loop) {
    std::vector<std::int64_t> part(64, 0);
    pool.ParallelFor(64,
                     [&](std::int64_t task, int) { part[static_cast<std::size_t>(task)] = task; });
    sum += std::accumulate(part.begin(), part.end(), std::int64_t{0});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(sum, 20 * 63 * 32);
}

// Every thread takes part when each waits for the others.
TEST_P(ThreadPoolTest, AllThreadsRunAtOnce) {
  ThreadPool pool(GetParam());
  std::atomic<int> arrived{0};
  pool.ParallelFor(GetParam(), [&](std::int64_t, int) {
    arrived.fetch_add(1);
    while (arrived.load() < GetParam()) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace kvcache::thread_pool_test
