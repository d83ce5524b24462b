#include "cache/cells/page_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

namespace kvcache::page_memory_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

AlignedBuffer Take(PageMemory& memory, std::int64_t bytes) {
  auto taken = memory.Take(static_cast<std::size_t>(bytes));
  EXPECT_TRUE(taken.ok());
  EXPECT_EQ(taken->size_bytes(), static_cast<std::size_t>(bytes));
  return std::move(*taken);
}

TEST(PageMemoryTest, ReusesTheSmallestThatFits) {
  PageMemory memory;
  AlignedBuffer small = Take(memory, 4 * kMiB);
  AlignedBuffer large = Take(memory, 6 * kMiB);
  const std::byte* const at_small = small.data();
  const std::byte* const at_large = large.data();
  memory.Give(std::move(large));
  memory.Give(std::move(small));
  EXPECT_EQ(memory.spare_bytes(), 10 * kMiB);
  EXPECT_EQ(Take(memory, 4 * kMiB).data(), at_small);
  EXPECT_EQ(Take(memory, 5 * kMiB).data(), at_large);
  EXPECT_EQ(memory.spare_bytes(), 0);
}

TEST(PageMemoryTest, GivesTheRestOfALargerPieceBack) {
  PageMemory memory;
  memory.Give(Take(memory, 8 * kMiB));
  AlignedBuffer part = Take(memory, 5 * kMiB + 3);
  EXPECT_EQ(memory.spare_bytes(), 0);
  part.data()[5 * kMiB + 2] = std::byte{1};
  memory.Give(std::move(part));
  EXPECT_EQ(memory.spare_bytes(), 5 * kMiB + 3);
}

TEST(PageMemoryTest, LeavesALargePieceToLargePages) {
  PageMemory memory;
  memory.Give(Take(memory, 8 * kMiB));
  const AlignedBuffer part = Take(memory, 3 * kMiB);
  EXPECT_EQ(memory.spare_bytes(), 8 * kMiB);
}

TEST(PageMemoryTest, KeepsNothingSmall) {
  PageMemory memory;
  memory.Give(Take(memory, 2 * kMiB - 1));
  EXPECT_EQ(memory.spare_bytes(), 0);
}

TEST(PageMemoryTest, FreesWhatIsAboveTheLimitOldestFirst) {
  PageMemory memory;
  memory.Limit(10 * kMiB);
  AlignedBuffer first = Take(memory, 4 * kMiB);
  AlignedBuffer second = Take(memory, 5 * kMiB);
  AlignedBuffer third = Take(memory, 3 * kMiB);
  AlignedBuffer too_large = Take(memory, 11 * kMiB);
  memory.Give(std::move(first));
  memory.Give(std::move(second));
  memory.Give(std::move(third));
  EXPECT_EQ(memory.spare_bytes(), 8 * kMiB);
  memory.Give(std::move(too_large));
  EXPECT_EQ(memory.spare_bytes(), 8 * kMiB);
  memory.Limit(3 * kMiB);
  EXPECT_EQ(memory.spare_bytes(), 3 * kMiB);
  memory.Limit(0);
  EXPECT_EQ(memory.spare_bytes(), 0);
}

TEST(PageMemoryTest, BoundsThePieces) {
  PageMemory memory;
  for (std::size_t i = 0; i < PageMemory::kMaxKept + 2; ++i) {
    AlignedBuffer piece = std::move(*AlignedBuffer::Make(PageMemory::kMinKept));
    piece.Shrink(PageMemory::kMinKept);
    memory.Limit(std::int64_t{1} << 40);
    memory.Give(std::move(piece));
  }
  EXPECT_EQ(memory.spare_bytes(),
            static_cast<std::int64_t>(PageMemory::kMaxKept * PageMemory::kMinKept));
}

TEST(PageMemoryTest, FreesEverythingBeforeItFails) {
  PageMemory memory;
  memory.Give(Take(memory, 4 * kMiB));
  EXPECT_EQ(memory.Take(std::size_t{1} << 62).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(memory.spare_bytes(), 0);
}

}  // namespace
}  // namespace kvcache::page_memory_test
