// Measures what a loop on the pool of threads costs by itself: tasks that do nothing.
//
//   thread_pool_bench [--threads=N] [--rounds=N] [--filter=REGEX] [--clock=cpu] [--json=FILE]
//
// A round has 2,000 loops of so many tasks, in a row, as the operations of a decode step are. Nodes are invented:
// threads are not pinned, and queues are those of a machine with as many memory nodes. Each task is counted and checked.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench_program.h"
#include "machine_limits.h"
#include "platform/numa/numa_testing.h"
#include "platform/thread_pool.h"

namespace kvcache::bench {
namespace {

constexpr int kLoops = 2000;

// A counter for each thread, on a cache line of its own.
struct alignas(64) Count {
  std::int64_t tasks = 0;
};

nlohmann::json RunCase(ThreadPool& pool, const std::string& name, std::int64_t tasks,
                       const ProgramOptions& options) {
  std::vector<Count> counts(static_cast<std::size_t>(pool.threads()));
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    const double begin = Seconds(options.clock);
    for (int loop = 0; loop < kLoops; ++loop) {
      pool.ParallelFor(tasks, [&](std::int64_t, int thread) {
        ++counts[static_cast<std::size_t>(thread)].tasks;
      });
    }
    seconds.push_back((Seconds(options.clock) - begin) / kLoops);
  }
  std::int64_t all = 0;
  for (const Count& count : counts) all += count.tasks;
  if (all != tasks * kLoops * options.rounds) Fail(name + ": tasks were lost, or ran twice");
  const Timing timing(std::move(seconds));
  std::printf("%-32s best %8.1f ns  median %8.1f  a loop\n", name.c_str(), timing.best * 1e9,
              timing.median * 1e9);
  nlohmann::json json = timing.Json();
  json.update({{"name", name}, {"kind", "loop"}, {"tasks", tasks}});
  return json;
}

int Run(const ProgramOptions& options) {
  nlohmann::json results = nlohmann::json::array();
  testing::InventedNuma system;
  for (const int nodes : {1, 2, 4}) {
    ThreadPool pool(testing::InventedNodes(nodes, options.threads), system);
    if (pool.nodes() != nodes) continue;  // fewer threads
    for (const std::int64_t tasks : {1, 2, 16, 256}) {
      const std::string name = "nodes " + std::to_string(nodes) + " tasks " + std::to_string(tasks);
      if (options.Wants(name)) results.push_back(RunCase(pool, name, tasks, options));
    }
  }
  const bool written = WriteResult(options.json, {"thread_pool", MachineFacts(options.threads),
                                                  options.Settings(), std::move(results)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  kvcache::bench::ProgramOptions options;
  CLI::App app("Measures the cost of a loop on the pool of threads");
  kvcache::bench::AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  return kvcache::bench::Run(options);
}
