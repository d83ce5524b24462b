// Checks where CallMemory takes bytes from, on a device that only counts.
#include "backend/cuda/device/call_memory.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvcache::cuda::call_memory_test {
namespace {

// A device whose memory is the host's. It has no kernels.
class CountingDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return info_; }
  std::size_t FreeBytes() const override { return 0; }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    if (refuse || size_bytes > most) return Status(StatusCode::kOutOfMemory, "refused");
    auto buffer = std::make_unique<HostBuffer>(size_bytes, live);
    sizes.push_back(size_bytes);
    return std::unique_ptr<Buffer>(std::move(buffer));
  }
  Status CopyIn(std::span<const std::byte> from, std::byte* to) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return Status::Ok();
  }
  Status CopyOut(const std::byte* /*from*/, std::span<std::byte> /*to*/) override {
    return Status::Ok();
  }
  Status Copy(const std::byte* /*from*/, std::byte* /*to*/, std::size_t /*bytes*/) override {
    return Status::Ok();
  }
  Status Launch(const Kernel& /*kernel*/, const Grid& /*grid*/, std::size_t /*shared_bytes*/,
                std::span<const std::byte> /*args*/) override {
    return Status::Ok();
  }
  Status Synchronize() override {
    live_at_synchronize.push_back(live.size());
    return lost ? Status(StatusCode::kIo, "lost") : Status::Ok();
  }

  bool refuse = false;
  bool lost = false;
  std::size_t most = std::size_t{1} << 30;
  std::vector<std::size_t> sizes;
  std::set<const void*> live;
  std::vector<std::size_t> live_at_synchronize;

 private:
  class HostBuffer final : public Buffer {
   public:
    HostBuffer(std::size_t size, std::set<const void*>& live)
        : memory_(new (std::align_val_t{256}) std::byte[size]()), size_(size), live_(live) {
      live_.insert(memory_);
    }
    ~HostBuffer() override {
      live_.erase(memory_);
      ::operator delete[](memory_, std::align_val_t{256});
    }
    std::byte* data() override { return memory_; }
    std::size_t size_bytes() const override { return size_; }

   private:
    std::byte* memory_;
    std::size_t size_;
    std::set<const void*>& live_;
  };

  DeviceInfo info_;
};

constexpr std::size_t kMegabyte = 1 << 20;

TEST(CallMemory, PiecesAreAlignedAndDoNotOverlap) {
  CountingDevice device;
  CallMemory memory(device);
  memory.BeginCall();
  std::vector<std::pair<std::byte*, std::size_t>> taken;
  for (const std::size_t bytes : {1u, 255u, 256u, 257u, 0u, 4000u}) {
    taken.emplace_back(memory.Take(bytes).value(), bytes);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken[i].first) % 256, 0u);
    if (i > 0) {
      EXPECT_GE(taken[i].first, taken[i - 1].first + taken[i - 1].second);
    }
  }
  EXPECT_EQ(device.sizes.size(), 1u);
}

TEST(CallMemory, TheNextCallUsesTheSameBytes) {
  CountingDevice device;
  CallMemory memory(device);
  memory.BeginCall();
  std::byte* const first = memory.Take(100).value();
  memory.BeginCall();
  EXPECT_EQ(memory.Take(5000).value(), first);
  EXPECT_EQ(device.sizes.size(), 1u);
  EXPECT_TRUE(device.live_at_synchronize.empty());
}

TEST(CallMemory, GrowingKeepsWhatWasTakenUntilTheQueueHasPassedIt) {
  CountingDevice device;
  CallMemory memory(device);
  memory.BeginCall();
  const std::vector<std::uint32_t> values = {1, 2, 3};
  const std::uint32_t* const before = memory.Upload(std::span(values)).value();
  std::byte* const large = memory.Take(3 * kMegabyte).value();
  std::memset(large, 0x55, 3 * kMegabyte);
  EXPECT_EQ(std::vector<std::uint32_t>(before, before + 3), values);
  EXPECT_EQ(device.live.size(), 2u);
  memory.BeginCall();
  // Both were alive when the queue was empty; then the smaller one went.
  EXPECT_EQ(device.live_at_synchronize, std::vector<std::size_t>{2});
  EXPECT_EQ(device.live.size(), 1u);
  // The same call again fits in what remained.
  ASSERT_TRUE(memory.Upload(std::span(values)).ok());
  ASSERT_TRUE(memory.Take(3 * kMegabyte).ok());
  EXPECT_EQ(device.sizes.size(), 2u);
}

TEST(CallMemory, TakesTheExactSizeWhereTwiceAsMuchDoesNotFit) {
  CountingDevice device;
  CallMemory memory(device);
  memory.BeginCall();
  ASSERT_TRUE(memory.Take(kMegabyte / 2).ok());
  device.most = kMegabyte;
  ASSERT_TRUE(memory.Take(kMegabyte - 256).ok());
  EXPECT_EQ(device.sizes, (std::vector<std::size_t>{kMegabyte, kMegabyte}));
  EXPECT_EQ(memory.Take(kMegabyte).status().code(), StatusCode::kOutOfMemory);
}

TEST(CallMemory, TheNextTakeReturnsAnErrorOfWaiting) {
  CountingDevice device;
  CallMemory memory(device);
  memory.BeginCall();
  ASSERT_TRUE(memory.Take(100).ok());
  ASSERT_TRUE(memory.Take(2 * kMegabyte).ok());
  device.lost = true;
  memory.BeginCall();
  device.lost = false;
  memory.BeginCall();
  const Status status = memory.Take(8).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "lost");
  EXPECT_TRUE(memory.Take(8).ok()) << "an error is told once";
}

TEST(CallMemory, AnErrorLeavesWhatWasTaken) {
  CountingDevice device;
  CallMemory memory(device);
  memory.BeginCall();
  std::byte* const first = memory.Take(512).value();
  device.refuse = true;
  EXPECT_EQ(memory.Take(2 * kMegabyte).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(memory.Take(8).value(), first + 768);
}

}  // namespace
}  // namespace kvcache::cuda::call_memory_test
