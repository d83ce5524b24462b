// Checks that the shim finds each planted error, and nothing in the correct twin, for several orders of threads.
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/shim/planted_kernels.h"
#include "backend/cuda/shim/shim_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::planted_test {
namespace {

using ::testing::HasSubstr;

struct Planted {
  const char* name;
  int threads;
  std::int64_t blocks;
  std::size_t shared_bytes;
  std::vector<const char*> texts;  // of the error
};

std::ostream& operator<<(std::ostream& out, const Planted& planted) {
  return out << planted.name;
}

constexpr std::size_t kMemoryShared = 512;
constexpr std::size_t kOrderShared = 2304;
constexpr const char* kRace = "it at src/backend/cuda/shim/planted_order_kernels.cu:";
constexpr int kCount = 1024;

const std::vector<Planted> kPlanted = {
    {"global_past_end",
     64,
     1,
     0,
     {"thread 0 (warp 0, lane 0)",
      "4 bytes at offset 4096 of allocation 1 (4096 bytes): out of bounds"}},
    {"global_before_begin",
     64,
     1,
     0,
     {"thread 0 ", "reads 4 bytes at 4 bytes before allocation 1 (4096 bytes): out of bounds"}},
    {"global_far_away", 64, 4, 0, {"writes 4 bytes at", "out of bounds"}},
    {"call_memory_past_end",
     64,
     1,
     0,
     {"thread 63 ", "writes 4 bytes at offset 768 of allocation 4 (1048576 bytes): out of bounds"}},
    {"wrong_memory", 64, 1, 0, {"reads 4 bytes at an address of the host: out of bounds"}},
    {"shared_past_end",
     64,
     1,
     kMemoryShared,
     {"thread 63 ",
      "writes 4 bytes at offset 512 of the block's shared memory (512 bytes): out of bounds"}},
    {"shared_before_begin",
     64,
     1,
     kMemoryShared,
     {"thread 0 ",
      "writes 4 bytes at 4 bytes before the block's shared memory (512 bytes): out of bounds"}},
    {"index_past_array", 64, 1, kMemoryShared, {"thread 63 ", "an index is outside of its array"}},
    {"shared_too_small",
     64,
     1,
     kMemoryShared,
     {"shared memory has 516 bytes, but the launch names 512"}},
    {"stack_of_another",
     64,
     1,
     8,
     {"thread 40 ", "reads 4 bytes at the stack of thread 0 (warp 0, lane 0): out of bounds"}},
    {"writes_arguments", 64, 1, 0, {"writes 4 bytes at offset 40 of the kernel's arguments"}},
    {"copy_past_end", 64, 1, 0, {"reads 4097 bytes at offset 0 of allocation 1", "out of bounds"}},
    {"fill_past_end", 64, 1, 0, {"writes 4100 bytes at offset 0 of allocation 2", "out of bounds"}},
    {"shared_unwritten",
     64,
     1,
     kMemoryShared,
     {"thread 0 ", "reads 4 bytes at offset 252", "nobody has written it"}},
    {"shared_of_another_block", 64, 3, kMemoryShared, {"nobody has written it"}},
    {"call_memory_unwritten",
     64,
     1,
     0,
     {"thread 5 ", "reads 4 bytes at offset 532 of allocation 4", "nobody has written it"}},
    {"half_unwritten", 64, 1, kMemoryShared, {"reads 4 bytes at", "nobody has written it"}},
    {"misaligned_vector", 64, 1, 0, {"not aligned for its type"}},
    {"misaligned_float", 64, 1, 0, {"not aligned for its type"}},
    {"misaligned_store", 64, 1, 0, {"not aligned for its type"}},
    {"shift_too_far", 64, 1, 0, {"lane 31)", "a shift by more bits than there are"}},
    {"division_by_zero", 64, 1, 0, {"thread 0 ", "a division by 0"}},

    {"no_block_barrier",
     256,
     1,
     kOrderShared,
     {"reads 4 bytes at offset ", "of the block's shared memory (2304 bytes)"}},
    {"no_barrier_before_reuse", 256, 1, kOrderShared, {kRace}},
    {"no_warp_barrier",
     256,
     1,
     kOrderShared,
     {"reads 4 bytes at offset ", "of the block's shared memory (2304 bytes)"}},
    {"no_warp_barrier_before_reuse", 256, 1, kOrderShared, {kRace}},
    {"shuffle_for_barrier", 256, 1, kOrderShared, {kRace}},
    {"warp_barrier_for_block", 256, 1, kOrderShared, {kRace}},
    {"all_threads_write",
     256,
     1,
     kOrderShared,
     {"writes 4 bytes at offset 0 of the block's shared memory", "wrote it"}},
    {"same_byte", 256, 1, kOrderShared, {"writes 1 byte at", "wrote it"}},
    {"byte_of_word", 256, 1, kOrderShared, {kRace}},
    {"all_threads_read", 256, 1, kOrderShared, {kRace}},
    {"all_lanes_read", 256, 1, kOrderShared, {kRace}},
    {"all_blocks_read", 64, 4, 0, {kRace, "blocks of a launch have no order"}},
    {"global_in_block", 256, 1, 0, {"of allocation 1", kRace}},
    {"blocks_write_the_same", 64, 4, 0, {"of allocation 2", "wrote it"}},
    {"reads_another_block", 64, 4, 0, {"of allocation 2", kRace}},
    {"in_place_across_blocks", 64, 4, 0, {"of allocation 1", kRace}},
    {"barrier_in_branch", 256, 1, 0, {"96 of 256 threads wait in BlockBarrier", "which has ended"}},
    {"ends_before_barrier",
     256,
     1,
     0,
     {"255 of 256 threads wait in BlockBarrier",
      "for thread 77 (warp 2, lane 13), which has ended"}},
    {"two_barriers", 256, 1, 0, {"waits at another barrier than threads of its block"}},
    {"barrier_and_shuffle", 64, 1, 0, {"BlockBarrier"}},
    {"half_of_warp",
     64,
     1,
     0,
     {"16 of 32 lanes of warp ", " wait in ShuffleXor at ", "lane 16), which has ended"}},
    {"different_calls", 64, 1, 0, {"reaches Shuffle", "other lanes of its warp are in Shuffle"}},
    {"lane_of_shuffle",
     64,
     1,
     0,
     {"lane 31)", "the lane of a shuffle is 32; must be from 0 to 31"}},
    {"mask_of_shuffle", 64, 1, 0, {"the mask of a shuffle is 32; must be from 0 to 31"}},
    {"no_wait_for_copy", 64, 1, kOrderShared, {"reads 4 bytes at", "nobody has waited for it"}},
    {"waits_for_fewer", 64, 1, kOrderShared, {"reads 4 bytes at", "nobody has waited for it"}},
    {"copy_of_another", 64, 1, kOrderShared, {"of the block's shared memory"}},
    {"barrier_before_wait", 64, 1, kOrderShared, {"of the block's shared memory"}},
    {"copy_into_use", 64, 1, kOrderShared, {"of the block's shared memory"}},
    {"misaligned_copy",
     64,
     1,
     kOrderShared,
     {"reads 16 bytes at", "of allocation 1", "misaligned"}},
    {"copy_past_shared", 64, 1, kOrderShared, {"writes 16 bytes at", "out of bounds"}},
    {"writes_early",
     64,
     1,
     0,
     {"writes 4 bytes at", "of allocation 1", "the thread has not called WaitForEarlier"}},
    {"reads_early",
     64,
     1,
     0,
     {"reads 4 bytes at", "of allocation 2", "the thread has not called WaitForEarlier"}},
    {"constant_of_kernel",
     64,
     1,
     0,
     {"reads 4 bytes at", "of allocation 2", "LoadConstant may come before WaitForEarlier"}},
    {"copies_early",
     64,
     1,
     kOrderShared,
     {"reads 16 bytes at", "of allocation 2", "the thread has not called WaitForEarlier"}},
    {"some_do_not_wait", 64, 1, 0, {"thread 7 ", "the thread ends without WaitForEarlier"}},
};

class PlantedErrors : public ::testing::TestWithParam<Planted> {
 protected:
  static Status Run(const std::string& prefix, std::uint64_t seed, AccessChecks checks) {
    const Planted& planted = GetParam();
    const std::unique_ptr<Device> device = MakeShimDevice({.seed = seed, .checks = checks});
    const auto x = device->Allocate(kCount * sizeof(float)).value();
    const auto y = device->Allocate(kCount * sizeof(float)).value();
    const auto bytes = device->Allocate(kCount).value();
    CallMemory memory(*device);
    memory.BeginCall();
    EXPECT_TRUE(memory.Take(256).ok());
    float* const piece = reinterpret_cast<float*>(memory.Take(64 * sizeof(float)).value());
    EXPECT_TRUE(memory.Take(256).ok());
    const std::vector<float> host(kCount);
    const std::string name = prefix + planted.name;
    const PlantedArgs args = {reinterpret_cast<float*>(x->data()),
                              reinterpret_cast<float*>(y->data()),
                              piece,
                              reinterpret_cast<std::uint8_t*>(bytes->data()),
                              host.data(),
                              kCount};
    EXPECT_TRUE(Launch(*device, Kernel{"planted_before", 64}, {}, args).ok());
    return Launch(*device, Kernel{name.c_str(), planted.threads}, {.x = planted.blocks}, args,
                  planted.shared_bytes);
  }
};

TEST_P(PlantedErrors, AreFound) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Status status = Run("planted_", seed, AccessChecks::kOn);
    ASSERT_EQ(status.code(), StatusCode::kInternal) << "seed " << seed;
    EXPECT_THAT(status.message(),
                HasSubstr("kernel 'planted_" + std::string(GetParam().name) + "', block ("));
    for (const char* const text : GetParam().texts) EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_THAT(status.message(), HasSubstr(" at src/backend/cuda/shim/planted_"));
  }
}

TEST_P(PlantedErrors, AreNotSeenInTheirTwins) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const AccessChecks checks : {AccessChecks::kOn, AccessChecks::kOff}) {
      const Status status = Run("correct_", seed, checks);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PlantedErrors, ::testing::ValuesIn(kPlanted),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvcache::cuda::planted_test
