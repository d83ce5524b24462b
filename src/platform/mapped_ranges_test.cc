#include "platform/mapped_ranges.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "platform/mapped_file.h"

namespace kvcache::mapped_ranges_test {
namespace {

TEST(MappedRangesTest, KnowsTheBytesOfFilesThatAreMapped) {
  const std::string path = ::testing::TempDir() + "mapped_ranges_test";
  std::ofstream(path) << std::string(10'000, 'x');
  std::span<const std::byte> bytes;
  {
    auto file = std::move(MappedFile::Open(path)).value();
    bytes = file.bytes();
    const MappedFile moved = std::move(file);
    EXPECT_TRUE(IsInMappedFile(bytes));
    EXPECT_TRUE(IsInMappedFile(bytes.subspan(9'999)));
    EXPECT_TRUE(IsInMappedFile(bytes.subspan(5'000, 10)));
    EXPECT_FALSE(IsInMappedFile({bytes.data() + 9'999, 2})) << "past its end";
    EXPECT_FALSE(IsInMappedFile({bytes.data() - 1, 2})) << "before its begin";
    EXPECT_FALSE(IsInMappedFile(bytes.first(0)));
    const std::vector<std::byte> heap(10'000);
    EXPECT_FALSE(IsInMappedFile(heap));
  }
  EXPECT_FALSE(IsInMappedFile(bytes)) << "no longer mapped";
}

}  // namespace
}  // namespace kvcache::mapped_ranges_test
