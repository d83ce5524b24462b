#include "platform/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace kvcache::aligned_buffer_test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(AlignedBufferTest, IsAlignedZeroedAndWritable) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{65}, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 3}) {
    Result<AlignedBuffer> buffer = AlignedBuffer::Make(size);
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_EQ(buffer->size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % AlignedBuffer::kAlignmentBytes,
              0u);
    std::byte* const end = buffer->data() + size;
    EXPECT_EQ(std::count(buffer->data(), end, std::byte{0}), static_cast<std::ptrdiff_t>(size));
    std::fill(buffer->data(), end, std::byte{0xff});
  }
}

TEST(AlignedBufferTest, MovesLeaveTheSourceEmpty) {
  Result<AlignedBuffer> made = AlignedBuffer::Make(3 * kMiB);
  ASSERT_TRUE(made.ok());
  AlignedBuffer first = std::move(*made);
  std::byte* const data = first.data();
  AlignedBuffer second;
  second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size_bytes(), 3 * kMiB);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what is promised
  EXPECT_EQ(first.size_bytes(), 0u);
}

TEST(AlignedBufferTest, ShrinksInPlace) {
  for (const std::size_t size : {std::size_t{1000}, 5 * kMiB}) {
    AlignedBuffer buffer = std::move(*AlignedBuffer::Make(size));
    std::byte* const data = buffer.data();
    data[size / 2 - 1] = std::byte{7};
    buffer.Shrink(size / 2);
    EXPECT_EQ(buffer.data(), data);
    EXPECT_EQ(buffer.size_bytes(), size / 2);
    EXPECT_EQ(data[size / 2 - 1], std::byte{7});
    buffer.Shrink(0);
    EXPECT_EQ(buffer.size_bytes(), 0u);
  }
}

TEST(AlignedBufferTest, RefusesWhatNoMachineHas) {
  for (const std::size_t size : {std::numeric_limits<std::size_t>::max(), std::size_t{1} << 62}) {
    const Result<AlignedBuffer> buffer = AlignedBuffer::Make(size);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(buffer.status().message().find(std::to_string(size)), std::string::npos);
  }
}

}  // namespace
}  // namespace kvcache::aligned_buffer_test
