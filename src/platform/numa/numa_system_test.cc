#include "platform/numa/numa_system.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include "platform/aligned_buffer.h"
#include "platform/numa/memory_nodes.h"
#include "platform/numa/numa_testing.h"
#include "platform/processors.h"

namespace kvcache::numa_system_test {
namespace {

TEST(MachineNumaTest, PinsTheCallingThreadAlone) {
  const std::vector<int> before = AllowedProcessors();
  ASSERT_FALSE(before.empty());
  std::vector<int> pinned;
  int at = -1;
  Status status;
  std::thread([&] {
    status = MachineNuma().Pin({&before.back(), 1});
    pinned = AllowedProcessors();
    at = MachineNuma().CurrentProcessor();
  }).join();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(pinned, (std::vector<int>{before.back()}));
  EXPECT_EQ(at, before.back());
  EXPECT_EQ(AllowedProcessors(), before);
}

TEST(MachineNumaTest, NamesTheCallThatTheSystemRefuses) {
  const int none = 200'000;  // no machine has it
  const Status pinned = MachineNuma().Pin({&none, 1});
  EXPECT_EQ(pinned.code(), StatusCode::kIo);
  EXPECT_TRUE(pinned.message().starts_with("sched_setaffinity: ")) << pinned.message();
  auto memory = std::move(AlignedBuffer::MakePaged(1 << 16)).value();
  const Status moved = MachineNuma().MovePages({memory.data(), memory.size_bytes()}, 1000);
  EXPECT_EQ(moved.code(), StatusCode::kIo);
  EXPECT_TRUE(moved.message().starts_with("mbind: ")) << moved.message();
  EXPECT_FALSE(MachineNuma().MovePages({memory.data(), memory.size_bytes()}, 2000).ok());
}

// A system that refuses says so, and the bytes are the same either way.
TEST(MachineNumaTest, PagesKeepTheirBytes) {
  auto memory = std::move(AlignedBuffer::Make(5 << 20)).value();
  for (std::size_t i = 0; i < memory.size_bytes(); i += 100) memory.data()[i] = std::byte(i * 7);
  const std::vector<MemoryNode> nodes = FindMemoryNodes(AllowedProcessors());
  const int node = nodes.empty() ? 0 : nodes.front().id;
  const Status status =
      MachineNuma().MovePages({memory.data() + 1000, memory.size_bytes() - 5000}, node);
  EXPECT_EQ(status.ok(), TryToMovePages(MachineNuma(), node).ok()) << status.message();
  for (std::size_t i = 0; i < memory.size_bytes(); i += 100) {
    ASSERT_EQ(memory.data()[i], std::byte(i * 7)) << i;
  }
}

TEST(TryToMovePagesTest, ReturnsWhatTheSystemSays) {
  testing::InventedNuma system;
  EXPECT_TRUE(TryToMovePages(system, 3).ok());
  ASSERT_EQ(system.moves().size(), 1u);
  EXPECT_EQ(system.moves()[0].node, 3);
  system.move_error = "mbind: Operation not permitted";
  EXPECT_EQ(TryToMovePages(system, 3).message(), system.move_error);
}

}  // namespace
}  // namespace kvcache::numa_system_test
