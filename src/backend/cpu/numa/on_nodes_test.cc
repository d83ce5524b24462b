// What MakeOnNodes decides and says.
#include "backend/cpu/numa/on_nodes.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "platform/numa/numa_testing.h"

namespace kvcache::cpu::on_nodes_test {
namespace {

using kvcache::testing::InventedNuma;

std::vector<MemoryNode> TwoNodes() {
  return {{.id = 0, .processors = {0, 1}, .cores = 2},
          {.id = 1, .processors = {100, 101}, .cores = 2}};
}

TEST(MakeOnNodesTest, SaysWhatItDoes) {
  InventedNuma system;
  EXPECT_EQ(MakeOnNodes(3, TwoNodes(), system)->placement(), "2 memory nodes with 2 + 1 threads");
  EXPECT_EQ(MakeOnNodes(3, TwoNodes(), system)->pool().nodes(), 2);
}

TEST(MakeOnNodesTest, SaysThatMergedNodesMoveNothing) {
  InventedNuma system;
  std::vector<MemoryNode> nodes = TwoNodes();
  nodes[0].is_merged = true;
  EXPECT_EQ(
      MakeOnNodes(4, nodes, system)->placement(),
      "2 memory nodes with 2 + 2 threads; weights of files stay where the system has them on 1 "
      "of the nodes, which are several of the machine's each");
}

TEST(MakeOnNodesTest, OneNodeOrOneThreadIsAsBefore) {
  InventedNuma system;
  const std::vector<MemoryNode> nodes = TwoNodes();
  for (const auto& [threads, count] : {std::pair(2, 0), std::pair(2, 1), std::pair(1, 2)}) {
    const auto backend =
        MakeOnNodes(threads, std::span(nodes).first(static_cast<std::size_t>(count)), system);
    EXPECT_EQ(backend->placement(), "");
    EXPECT_EQ(backend->pool().nodes(), 1);
    EXPECT_EQ(backend->threads(), threads);
  }
  EXPECT_EQ(system.pins.load(), 0);
}

TEST(MakeOnNodesTest, KeepsThePolicyOfTheProcess) {
  InventedNuma system;
  system.has_policy = true;
  const auto backend = MakeOnNodes(4, TwoNodes(), system);
  EXPECT_EQ(backend->pool().nodes(), 1);
  EXPECT_EQ(backend->placement(), "the memory policy of the process decides on memory nodes");
}

TEST(MakeOnNodesTest, SaysWhatTheSystemRefuses) {
  InventedNuma system;
  system.pin_error = "sched_setaffinity: Invalid argument";
  system.move_error = "mbind: Operation not permitted";
  EXPECT_EQ(MakeOnNodes(4, TwoNodes(), system)->placement(),
            "2 memory nodes with 2 + 2 threads; threads are not pinned to them "
            "(sched_setaffinity: Invalid argument); weights of files stay where the system has "
            "them (mbind: Operation not permitted)");
}

}  // namespace
}  // namespace kvcache::cpu::on_nodes_test
