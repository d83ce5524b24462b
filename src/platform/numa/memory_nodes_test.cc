#include "platform/numa/memory_nodes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace kvcache::memory_nodes_test {
namespace {

// A folder with the files of /proc and /sys that describe an invented machine.
class MemoryNodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "nodes.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteOnline(const std::string& list) {
    Write("/sys/devices/system/node/online", list + "\n");
  }
  void WriteNode(int node, const std::string& processors, int memory_kb = 1 << 20,
                 const std::string& distances = "10 21") {
    const std::string number = std::to_string(node);
    const std::string folder = "/sys/devices/system/node/node" + number;
    Write(folder + "/cpulist", processors + "\n");
    Write(folder + "/meminfo", "\nNode " + number +
                                   " MemTotal:       " + std::to_string(memory_kb) + " kB\nNode " +
                                   number + " MemFree:        1 kB\n");
    Write(folder + "/distance", distances + "\n");
  }
  void WriteSiblings(int processor, const std::string& siblings) {
    Write("/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/core_cpus_list",
          siblings + "\n");
  }
  void WriteAllowedMemory(const std::string& list) {
    Write("/proc/self/status", "Name:\tx\nMems_allowed:\t3\nMems_allowed_list:\t" + list + "\n");
  }

  static std::vector<int> Range(int begin, int end) {
    std::vector<int> range(static_cast<std::size_t>(end - begin));
    std::iota(range.begin(), range.end(), begin);
    return range;
  }
  // The processors of each node.
  std::map<int, std::vector<int>> Find(const std::vector<int>& allowed) const {
    std::map<int, std::vector<int>> found;
    for (const MemoryNode& node : FindMemoryNodes(allowed, root_)) {
      found[node.id] = node.processors;
    }
    return found;
  }
  // The threads of each node.
  std::map<int, int> Spread(const std::vector<int>& allowed, int threads) const {
    std::map<int, int> spread;
    for (const NodeThreads& node : SpreadThreads(FindMemoryNodes(allowed, root_), threads)) {
      spread[node.node] = node.threads;
    }
    return spread;
  }

  std::string root_;
};

using Processors = std::map<int, std::vector<int>>;
using Threads = std::map<int, int>;

TEST_F(MemoryNodesTest, TwoSocketsWithTwoThreadsPerCore) {
  WriteOnline("0-1");
  WriteNode(0, "0-3,8-11");
  WriteNode(1, "4-7,12-15", 1 << 20, "21 10");
  for (int core = 0; core < 8; ++core) {
    const std::string siblings = std::to_string(core) + "," + std::to_string(core + 8);
    WriteSiblings(core, siblings);
    WriteSiblings(core + 8, siblings);
  }
  const auto nodes = FindMemoryNodes(Range(0, 16), root_);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_EQ(nodes[0].processors, (std::vector<int>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(nodes[0].cores, 4);
  EXPECT_EQ(nodes[1].processors, (std::vector<int>{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(Spread(Range(0, 16), 8), (Threads{{0, 4}, {1, 4}}));
  EXPECT_EQ(Spread(Range(0, 16), 16), (Threads{{0, 8}, {1, 8}}));
}

TEST_F(MemoryNodesTest, AffinityLeavesOutNodesAndProcessors) {
  WriteOnline("0-1");
  WriteNode(0, "0-3");
  WriteNode(1, "4-7");
  EXPECT_EQ(Find({2, 3, 4}), (Processors{{0, {2, 3}}, {1, {4}}}));
  EXPECT_EQ(Find({5, 7}), (Processors{{1, {5, 7}}}));
  EXPECT_EQ(Spread({2, 3, 4}, 3), (Threads{{0, 2}, {1, 1}}));
}

TEST_F(MemoryNodesTest, OneNode) {
  WriteOnline("0");
  WriteNode(0, "0-1", 1 << 20, "10");
  EXPECT_EQ(Find({0, 1}), (Processors{{0, {0, 1}}}));
}

TEST_F(MemoryNodesTest, NodesThatAreOfflineDoNotCount) {
  WriteOnline("0,2");
  WriteNode(0, "0-1");
  WriteNode(1, "2-3");
  WriteNode(2, "4-5", 1 << 20, "21 10");
  EXPECT_EQ(Find(Range(0, 6)), (Processors{{0, {0, 1, 2, 3}}, {2, {4, 5}}}))
      << "processors of no node belong to the first";
}

TEST_F(MemoryNodesTest, MemoryWithoutProcessorsIsNobodys) {
  WriteOnline("0-2");
  WriteNode(0, "0-1", 1 << 20, "10 21 17");
  WriteNode(1, "2-3", 1 << 20, "21 10 28");
  WriteNode(2, "", 1 << 22, "17 28 10");
  EXPECT_EQ(Find(Range(0, 4)), (Processors{{0, {0, 1}}, {1, {2, 3}}}));
}

TEST_F(MemoryNodesTest, ProcessorsWithoutMemoryBelongToTheNearestNode) {
  WriteOnline("0-3");
  WriteNode(0, "0", 1 << 20, "10 21 21 21");
  WriteNode(1, "1", 0, "21 10 15 12");
  WriteNode(2, "2", 1 << 20, "21 15 10 21");
  WriteNode(3, "3", 0, "30 12 31 10");
  EXPECT_EQ(Find(Range(0, 4)), (Processors{{0, {0, 3}}, {2, {1, 2}}}));
}

// The cpuset of a container may allow processors of two nodes, and memory of one.
TEST_F(MemoryNodesTest, TheCpusetsMemory) {
  WriteOnline("0-1");
  WriteNode(0, "0-1", 1 << 20, "10 21");
  WriteNode(1, "2-3", 1 << 20, "21 10");
  WriteAllowedMemory("1");
  EXPECT_EQ(Find(Range(0, 4)), (Processors{{1, {0, 1, 2, 3}}}));
  WriteAllowedMemory("0-1");
  EXPECT_EQ(Find(Range(0, 4)).size(), 2u);
  WriteAllowedMemory("damaged");
  EXPECT_EQ(Find(Range(0, 4)).size(), 2u);
}

TEST_F(MemoryNodesTest, NodesAreUnknownWithoutOrWithDamagedFiles) {
  EXPECT_TRUE(Find({0, 1}).empty());
  WriteOnline("0-");
  WriteNode(0, "0-1");
  EXPECT_TRUE(Find({0, 1}).empty());
  WriteOnline("0-1");
  WriteNode(1, "2-1");
  EXPECT_EQ(Find({0, 1, 2}), (Processors{{0, {0, 1, 2}}}));
  WriteNode(1, "2");
  Write("/sys/devices/system/node/node1/meminfo", "garbage\n");
  Write("/sys/devices/system/node/node1/distance", "far\n");
  EXPECT_EQ(Find({0, 1, 2}), (Processors{{0, {0, 1}}, {1, {2}}}));
}

TEST_F(MemoryNodesTest, ManyNodesAreMerged) {
  constexpr int kNodes = 40;
  WriteOnline("0-39");
  for (int node = 0; node < kNodes; ++node) WriteNode(node, std::to_string(node));
  const auto nodes = FindMemoryNodes(Range(0, kNodes), root_);
  ASSERT_EQ(nodes.size(), 10u);
  EXPECT_EQ(nodes[1].id, 4);
  EXPECT_EQ(nodes[1].processors, (std::vector<int>{4, 5, 6, 7}));
  for (const MemoryNode& node : nodes) EXPECT_TRUE(node.is_merged) << node.id;
  for (const NodeThreads& node : SpreadThreads(nodes, 20)) EXPECT_TRUE(node.is_merged) << node.node;
}

TEST_F(MemoryNodesTest, ANodeWithoutANeighborIsNotMerged) {
  WriteOnline("0-16");
  for (int node = 0; node < 17; ++node) WriteNode(node, std::to_string(node));
  const auto nodes = FindMemoryNodes(Range(0, 17), root_);
  ASSERT_EQ(nodes.size(), 9u);
  for (const MemoryNode& node : nodes) EXPECT_EQ(node.is_merged, node.id != 16) << node.id;
  const auto spread = SpreadThreads(nodes, 17);
  ASSERT_EQ(spread.size(), 9u);
  EXPECT_TRUE(spread.front().is_merged);
  EXPECT_FALSE(spread.back().is_merged);
}

TEST_F(MemoryNodesTest, ThreadsAreInProportion) {
  WriteOnline("0-2");
  WriteNode(0, "0-3", 1 << 20, "10 21 21");
  WriteNode(1, "4-5", 1 << 20, "21 10 21");
  WriteNode(2, "6-7", 1 << 20, "21 21 10");
  const std::vector<int> all = Range(0, 8);
  EXPECT_EQ(Spread(all, 8), (Threads{{0, 4}, {1, 2}, {2, 2}}));
  EXPECT_EQ(Spread(all, 4), (Threads{{0, 2}, {1, 1}, {2, 1}}));
  for (int threads = 1; threads <= 40; ++threads) {
    int sum = 0;
    for (const auto& [node, count] : Spread(all, threads)) {
      EXPECT_GE(count, 1);
      EXPECT_LE(count, threads / (node == 0 ? 2 : 4) + 1);
      sum += count;
    }
    EXPECT_EQ(sum, threads);
  }
  EXPECT_EQ(Spread(all, 1).size(), 1u);
}

TEST(ParseNumberListTest, ReadsListsOfTheSystem) {
  struct Case {
    const char* text;
    std::vector<int> numbers;
  };
  for (const Case& each : {Case{"0", {0}}, Case{"0-2,7", {0, 1, 2, 7}}, Case{" 5 \n", {5}},
                           Case{"", {}}, Case{"\n", {}}}) {
    EXPECT_EQ(ParseNumberList(each.text), each.numbers) << each.text;
  }
  for (const char* const text :
       {"x", "1-", "-1", "3-1", "1,", ",1", "1,,2", "1 2", "0-99999999", "99999999999999"}) {
    EXPECT_FALSE(ParseNumberList(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace kvcache::memory_nodes_test
