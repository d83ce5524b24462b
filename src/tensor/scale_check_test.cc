#include "tensor/scale_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tensor/float_conversion.h"

namespace kvcache {
namespace {

constexpr DType kWithHalves[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                                 DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL};

// Four blocks with scales of 1, whose other bytes are all ones.
std::vector<std::byte> RowOf(DType dtype) {
  const auto size = static_cast<std::size_t>(InfoOf(dtype).block_bytes);
  std::vector<std::byte> row(4 * size, std::byte{255});
  for (std::size_t block = 0; block < 4; ++block) {
    const std::uint16_t one = F32ToF16(1.0f);
    std::memcpy(row.data() + block * size, &one, sizeof(one));
  }
  return row;
}

void SetScale(DType dtype, std::size_t block, std::uint16_t half, std::vector<std::byte>* row) {
  std::memcpy(row->data() + block * static_cast<std::size_t>(InfoOf(dtype).block_bytes), &half, 2);
}

TEST(ScaleCheck, FindsInfinitiesOfEitherSign) {
  for (const DType dtype : kWithHalves) {
    std::vector<std::byte> row = RowOf(dtype);
    EXPECT_EQ(FindRefusedScale(dtype, row), -1) << InfoOf(dtype).name;
    SetScale(dtype, 3, 0x7c00, &row);
    EXPECT_EQ(FindRefusedScale(dtype, row), 3) << InfoOf(dtype).name;
    EXPECT_EQ(RefuseScale(dtype, row, 3).message(), "block 3 of " +
                                                        std::string(InfoOf(dtype).name) +
                                                        ": the scale is infinity; must be finite");
    SetScale(dtype, 1, 0xfc00, &row);
    EXPECT_EQ(FindRefusedScale(dtype, row), 1);
    EXPECT_THAT(std::string(RefuseScale(dtype, row, 1).message()),
                ::testing::HasSubstr("-infinity"));
  }
}

TEST(ScaleCheck, AcceptsTheLargestScalesAndNans) {
  for (const DType dtype : kWithHalves) {
    std::vector<std::byte> row = RowOf(dtype);
    SetScale(dtype, 0, 0x7bff, &row);
    SetScale(dtype, 1, 0xfbff, &row);
    SetScale(dtype, 2, 0x7c01, &row);
    SetScale(dtype, 3, 0xfe00, &row);
    EXPECT_EQ(FindRefusedScale(dtype, row), -1) << InfoOf(dtype).name;
  }
}

TEST(ScaleCheck, BoundsTheExponentsOfMxfp4) {
  std::vector<std::byte> row(3 * 17, std::byte{0});
  row[17] = std::byte{230};
  EXPECT_EQ(FindRefusedScale(DType::kMXFP4, row), -1);
  row[34] = std::byte{231};
  EXPECT_EQ(FindRefusedScale(DType::kMXFP4, row), 2);
  const Status status = RefuseScale(DType::kMXFP4, row, 2);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "block 2 of mxfp4: the scale is 2^104; must be at most 2^103");
  row[0] = std::byte{255};
  EXPECT_EQ(FindRefusedScale(DType::kMXFP4, row), 0);
}

TEST(ScaleCheck, LeavesOtherTypesAlone) {
  const std::vector<std::byte> bytes(2 * 210, std::byte{0x7c});
  for (const DType dtype : {DType::kF16, DType::kQ6_K, DType::kQ4_K, DType::kNVFP4}) {
    EXPECT_EQ(FindRefusedScale(dtype, bytes), -1);
  }
}

}  // namespace
}  // namespace kvcache
