// Checks the shim as a Device: its memory, its copies, and what it says of wrong launches.
#include "backend/cuda/shim/shim_device.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/shim/language_kernels.h"
#include "backend/cuda/shim/planted_kernels.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::shim_device_test {
namespace {

using ::testing::HasSubstr;

constexpr Kernel kAdd{"language_add", 256};

float* FloatsOf(Buffer& buffer) {
  return reinterpret_cast<float*>(buffer.data());
}

std::vector<std::byte> BytesOf(Device& device, const std::byte* from, std::size_t bytes) {
  std::vector<std::byte> to(bytes);
  EXPECT_TRUE(device.CopyOut(from, to).ok());
  return to;
}

TEST(ShimDevice, MemoryIsZeroAlignedAndCounted) {
  const std::unique_ptr<Device> device = MakeShimDevice({.memory_bytes = 10000});
  for (int round = 0; round < 3; ++round) {
    auto first = device->Allocate(5000).value();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first->data()) % 256, 0u);
    EXPECT_EQ(first->size_bytes(), 5000u);
    EXPECT_EQ(BytesOf(*device, first->data(), 5000), std::vector<std::byte>(5000));
    ASSERT_TRUE(device->CopyIn(std::vector<std::byte>(5000, std::byte{7}), first->data()).ok());
    EXPECT_EQ(device->FreeBytes(), 5000u);
    EXPECT_TRUE(device->Allocate(0).ok());
    const Result<std::unique_ptr<Buffer>> second = device->Allocate(5001);
    EXPECT_EQ(second.status().code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(second.status().message(), "shim: 5001 bytes do not fit in 5000 free bytes");
  }
  EXPECT_EQ(device->FreeBytes(), 10000u);
}

TEST(ShimDevice, CopiesStayInAllocations) {
  const std::unique_ptr<Device> device = MakeShimDevice();
  const auto a = device->Allocate(100).value();
  const auto b = device->Allocate(300).value();
  std::vector<std::byte> host(301);
  EXPECT_TRUE(device->CopyIn(std::span(host).first(100), a->data()).ok());
  EXPECT_TRUE(device->Copy(a->data(), b->data() + 200, 100).ok());
  EXPECT_EQ(device->CopyIn(std::span(host).first(101), a->data()).message(),
            "CopyIn: 101 bytes at offset 0 of allocation 1 (100 bytes): out of bounds");
  EXPECT_EQ(device->CopyOut(b->data() + 1, std::span(host).first(300)).message(),
            "CopyOut: 300 bytes at offset 1 of allocation 2 (300 bytes): out of bounds");
  EXPECT_EQ(device->Copy(a->data(), b->data() + 201, 100).message(),
            "Copy: 100 bytes at offset 201 of allocation 2 (300 bytes): out of bounds");
  EXPECT_EQ(device->CopyIn(std::span(host).first(1), host.data()).message(),
            "CopyIn: 1 bytes at an address of the host: out of bounds");
}

// The planted error reads what was freed.
TEST(ShimDevice, FreedMemoryIsOutOfBounds) {
  const std::unique_ptr<Device> device = MakeShimDevice();
  const auto x = device->Allocate(4096).value();
  const auto y = device->Allocate(4096).value();
  auto freed = device->Allocate(4096).value();
  PlantedArgs args = {FloatsOf(*x), FloatsOf(*y), nullptr, nullptr, FloatsOf(*freed), 1024};
  const Kernel kernel{"planted_wrong_memory", 64};
  EXPECT_TRUE(Launch(*device, kernel, {}, args).ok());
  freed.reset();
  EXPECT_THAT(Launch(*device, kernel, {}, args).message(),
              HasSubstr("device memory that is not allocated: out of bounds"));
  args.wrong = nullptr;
  EXPECT_THAT(Launch(*device, kernel, {}, args).message(),
              HasSubstr("an address of the host: out of bounds"));
}

// A copy of bytes of which some are not written leaves those unwritten at the target.
TEST(ShimDevice, CopiesKeepWhatIsUnwritten) {
  const std::unique_ptr<Device> device = MakeShimDevice();
  const auto x = device->Allocate(4096).value();
  const auto y = device->Allocate(4096).value();
  device->Mark(x->data(), 4096, MemoryUse::kUndefined);
  const PlantedArgs args = {FloatsOf(*x), FloatsOf(*y), nullptr, nullptr, FloatsOf(*x) + 16, 1024};
  const Kernel kernel{"planted_wrong_memory", 64};
  const std::vector<std::byte> host(4 * 64);
  // All but one byte of the last word.
  ASSERT_TRUE(device->CopyIn(std::span(host).first(4 * 64 - 1), x->data() + 64).ok());
  EXPECT_THAT(Launch(*device, kernel, {}, args).message(),
              HasSubstr("thread 63 (warp 1, lane 31) at src/backend/cuda/shim/"));
  EXPECT_EQ(BytesOf(*device, x->data() + 64 + 255, 1), std::vector{std::byte{0xff}});
  ASSERT_TRUE(device->Copy(x->data() + 64, y->data() + 1, 256).ok());
  ASSERT_TRUE(device->Copy(y->data() + 1, x->data() + 64, 256).ok());
  EXPECT_THAT(Launch(*device, kernel, {}, args).message(), HasSubstr("nobody has written it"));
  ASSERT_TRUE(device->CopyIn(host, x->data() + 64).ok());
  EXPECT_TRUE(Launch(*device, kernel, {}, args).ok());
}

TEST(ShimDevice, WrongLaunches) {
  const std::unique_ptr<Device> device = MakeShimDevice({.shared_bytes = 1000});
  const LanguageAddArgs args = {nullptr, nullptr, 0};
  EXPECT_TRUE(Launch(*device, kAdd, {}, args, 1000).ok());
  EXPECT_EQ(Launch(*device, Kernel{"no_such", 256}, {}, args).message(),
            "kernel 'no_such': no kernel has this name");
  EXPECT_EQ(Launch(*device, Kernel{"language_add", 128}, {}, args).message(),
            "kernel 'language_add': the launch has 128 threads a block; the kernel has 256");
  EXPECT_EQ(Launch(*device, kAdd, {}, 1).message(),
            "kernel 'language_add': the launch has 4 bytes of arguments; the kernel has 24");
  EXPECT_EQ(Launch(*device, kAdd, {}, args, 1001).message(),
            "kernel 'language_add': 1001 bytes of shared memory; the device has 1000");
  EXPECT_THAT(Launch(*device, kAdd, {.y = 65536}, args).message(),
              HasSubstr("the grid is 1 x 65536 x 1 blocks"));
  EXPECT_TRUE(Launch(*device, kAdd, {.x = 3, .y = 0}, args).ok());
}

// A device goes on after an error, and another device of the thread does too.
TEST(ShimDevice, RunsAfterAnError) {
  const std::unique_ptr<Device> device = MakeShimDevice();
  const std::unique_ptr<Device> other = MakeShimDevice();
  for (int round = 0; round < 3; ++round) {
    for (Device* const each : {device.get(), other.get()}) {
      const auto x = each->Allocate(1024).value();
      const auto y = each->Allocate(1024).value();
      const PlantedArgs wrong = {FloatsOf(*x), FloatsOf(*y), nullptr, nullptr, nullptr, 256};
      EXPECT_EQ(Launch(*each, Kernel{"planted_ends_before_barrier", 256}, {}, wrong).code(),
                StatusCode::kInternal);
      const LanguageAddArgs args = {FloatsOf(*x), FloatsOf(*y), 256};
      EXPECT_TRUE(Launch(*each, kAdd, {}, args).ok());
    }
  }
}

// A seed gives the same order each time, and seeds differ: the first error names the thread that came first.
TEST(ShimDevice, SeedsChooseTheOrder) {
  const auto message = [](std::uint64_t seed) {
    const std::unique_ptr<Device> device = MakeShimDevice({.seed = seed});
    return Launch(*device, Kernel{"planted_wrong_memory", 64}, {.x = 5}, PlantedArgs{}).message();
  };
  std::set<std::string> messages;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    messages.insert(message(seed));
    EXPECT_EQ(message(seed), message(seed));
  }
  EXPECT_GT(messages.size(), 15u);
}

}  // namespace
}  // namespace kvcache::cuda::shim_device_test
