// Checks which launches may start before those before them have ended.
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/device/driver_device.h"
#include "backend/cuda/shim/fake_driver.h"
#include "backend/cuda/shim/language_kernels.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::driver_launch_test {
namespace {

class DriverLaunch : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Device>> Make() {
    return MakeDriverDevice(fake_.driver(), fake_.kernels(), 0);
  }
  FakeDriver fake_;
};

constexpr Kernel kAddKernel{"language_add", 256};

// Code for targets from 9.0 on waits for the kernel before it; other code must not start before its end.
TEST_F(DriverLaunch, OnlyKernelsThatWaitMayStartEarly) {
  for (const auto& [target, overlaps] : {std::pair{80, 0}, {89, 0}, {90, 3}, {120, 3}}) {
    fake_.target = target;
    const auto device = Make();
    ASSERT_TRUE(device.ok());
    const int launches = fake_.launches();
    const int before = fake_.overlaps();
    const int shared = fake_.wholly_shared();
    const auto buffer = (*device)->Allocate(2048);
    ASSERT_TRUE(buffer.ok());
    auto* const values = reinterpret_cast<float*>((*buffer)->data());
    const std::vector<float> ones(512, 1.0f);
    ASSERT_TRUE((*device)->CopyIn(std::as_bytes(std::span(ones)), (*buffer)->data()).ok());
    const LanguageAddArgs add{values, values + 256, 256};
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Launch(**device, kAddKernel, {}, add).ok());
    std::vector<float> sums(512);
    ASSERT_TRUE(
        (*device)->CopyOut((*buffer)->data(), std::as_writable_bytes(std::span(sums))).ok());
    EXPECT_EQ(sums[0], 1.0f);
    EXPECT_EQ(sums[511], 4.0f);
    EXPECT_EQ(fake_.launches() - launches, 3);
    EXPECT_EQ(fake_.overlaps() - before, overlaps) << target;
    EXPECT_EQ(fake_.wholly_shared() - shared, overlaps > 0 ? 1 : 0) << target;
  }
}

// A compiler may join loads up to the next multiple of the alignment of shared memory.
TEST_F(DriverLaunch, AsksForWholeUnitsOfSharedMemory) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  const auto buffer = (*device)->Allocate(2048);
  ASSERT_TRUE(buffer.ok());
  auto* const values = reinterpret_cast<float*>((*buffer)->data());
  const LanguageAddArgs add{values, values + 256, 256};
  constexpr std::size_t kWithoutAsking = std::size_t{48} << 10;
  for (const auto& [bytes, whole] : {std::pair<std::size_t, std::size_t>{0, 0},
                                     {4, 128},
                                     {128, 128},
                                     {129, 256},
                                     {kWithoutAsking - 4, kWithoutAsking},
                                     {kWithoutAsking + 4, kWithoutAsking + 128}}) {
    ASSERT_TRUE(Launch(**device, kAddKernel, {}, add, bytes).ok());
    EXPECT_EQ(fake_.shared_bytes(), whole);
    EXPECT_EQ(fake_.allowed_shared_bytes(), whole > kWithoutAsking ? whole : 0);
  }
  EXPECT_TRUE((*device)->Synchronize().ok());
}

TEST_F(DriverLaunch, NamesAKernelThatTheDriverDoesNotDescribe) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  fake_.Fail("cuFuncGetAttribute", kDriverInvalidValue);
  const Status status = Launch(**device, kAddKernel, {}, LanguageAddArgs{});
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "device 'Fake': language_add: an error (1)");
  // What has not been described is not known.
  EXPECT_EQ(Launch(**device, kAddKernel, {}, LanguageAddArgs{}).message(), status.message());
}

// Tools that check calls report each question that fails.
TEST_F(DriverLaunch, AsksFirstTheModuleThatHasSimilarNames) {
  const auto device = Make();
  ASSERT_TRUE(device.ok());
  const auto buffer = (*device)->Allocate(2048);
  ASSERT_TRUE(buffer.ok());
  auto* const values = reinterpret_cast<float*>((*buffer)->data());
  const LanguageAddArgs add{values, values + 256, 256};
  ASSERT_TRUE(Launch(**device, kAddKernel, {}, add).ok());
  EXPECT_EQ(fake_.not_found(), 1) << "the kernels are in the second of two modules";
  // Objects stand for kernels, so each of these is asked for.
  static constexpr Kernel kAgain = kAddKernel;
  ASSERT_TRUE(Launch(**device, kAgain, {}, add).ok());
  EXPECT_EQ(fake_.not_found(), 1);
  static constexpr Kernel kUnknown{"language_unknown", 256};
  EXPECT_EQ(Launch(**device, kUnknown, {}, add).message(), "no kernel 'language_unknown'");
  EXPECT_EQ(fake_.not_found(), 2) << "all modules were asked";
}

}  // namespace
}  // namespace kvcache::cuda::driver_launch_test
