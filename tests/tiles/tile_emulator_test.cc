#include "support/internal/tile_emulator.h"

#include <gtest/gtest.h>

#if defined(__x86_64__) && defined(__linux__)

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_target.h"
#include "backend/cpu/cpu_tiles.h"
#include "kvcache/cpu_backend.h"
#include "support/internal/tile_instruction.h"

namespace kvcache::tile_emulator_test {
namespace {

using testing::DecodeTileInstruction;
using testing::TileAddress;
using testing::TileInstruction;
using testing::TileOperation;

struct alignas(64) Config {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

class TileEmulatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::EmulateTiles()) GTEST_SKIP() << "this machine lacks the vectors of AMX";
  }
};

// Each instruction is one that the assembler made.
TEST_F(TileEmulatorTest, TilesAreLoadedMultipliedAndStored) {
  const Config config;
  std::array<std::int8_t, 1024> a{}, b{};
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::int8_t>(i * 7 % 251 - 125);
    b[i] = static_cast<std::int8_t>(i * 13 % 241 - 120);
  }
  std::array<std::int32_t, 256> sums{};
  asm volatile(
      "ldtilecfg %[config]\n\t"
      "tilezero %%tmm0\n\t"
      "tileloadd (%[a],%[stride],1), %%tmm1\n\t"
      "tileloaddt1 (%[b],%[stride],1), %%tmm7\n\t"
      "tdpbssd %%tmm7, %%tmm1, %%tmm0\n\t"
      "tilestored %%tmm0, (%[sums],%[stride],1)\n\t"
      "tilerelease"
      :
      : [config] "m"(config), [a] "r"(a.data()), [b] "r"(b.data()), [sums] "r"(sums.data()),
        [stride] "r"(std::int64_t{64})
      : "memory");
  for (std::size_t m = 0; m < 16; ++m) {
    for (std::size_t n = 0; n < 16; ++n) {
      std::int32_t sum = 0;
      for (std::size_t k = 0; k < 64; ++k) sum += a[m * 64 + k] * b[k / 4 * 64 + n * 4 + k % 4];
      ASSERT_EQ(sums[m * 16 + n], sum) << m << ", " << n;
    }
  }
}

// Strides of two bytes × 32, a displacement, registers above the eighth.
TEST_F(TileEmulatorTest, AddressesHaveScalesAndDisplacements) {
  const Config config;
  std::vector<std::byte> from(8 + 1024), to(1024 + 300);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31);
  register const std::byte* first asm("r13") = from.data();
  register std::int64_t half asm("r12") = 32;
  register std::byte* last asm("r15") = to.data();
  asm volatile(
      "ldtilecfg %[config]\n\t"
      "tileloadd 8(%[from],%[half],2), %%tmm5\n\t"
      "tilestored %%tmm5, 300(%[to],%[half],2)\n\t"
      "tilerelease"
      :
      : [config] "m"(config), [from] "r"(first), [half] "r"(half), [to] "r"(last)
      : "memory");
  EXPECT_EQ(std::memcmp(from.data() + 8, to.data() + 300, 1024), 0);
}

TEST_F(TileEmulatorTest, TheFourProductsDifferInSigns) {
  Config config;
  for (int i = 0; i < 8; ++i) config.rows[i] = 1, config.row_bytes[i] = 4;
  const std::uint32_t a = 0x000000ff, b = 0x000000fe;
  const std::int64_t stride = 4;
  std::array<std::int32_t, 4> sums{};
#define KVCACHE_PRODUCT(name, sum)                                                         \
  asm volatile(                                                                            \
      "ldtilecfg %[config]\n\t"                                                            \
      "tileloadd (%[a],%[stride],1), %%tmm2\n\t"                                           \
      "tileloadd (%[b],%[stride],1), %%tmm3\n\t" name                                      \
      " %%tmm3, %%tmm2, %%tmm4\n\t"                                                        \
      "tilestored %%tmm4, (%[s],%[stride],1)\n\t"                                          \
      "tilerelease"                                                                        \
      :                                                                                    \
      : [config] "m"(config), [a] "r"(&a), [b] "r"(&b), [s] "r"(sum), [stride] "r"(stride) \
      : "memory")
  KVCACHE_PRODUCT("tdpbssd", &sums[0]);
  KVCACHE_PRODUCT("tdpbsud", &sums[1]);
  KVCACHE_PRODUCT("tdpbusd", &sums[2]);
  KVCACHE_PRODUCT("tdpbuud", &sums[3]);
#undef KVCACHE_PRODUCT
  EXPECT_EQ(sums, (std::array<std::int32_t, 4>{-1 * -2, -1 * 254, 255 * -2, 255 * 254}));
}

TEST_F(TileEmulatorTest, EachThreadHasTilesOfItsOwn) {
  Config config, stored;
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  std::thread([&] { asm volatile("sttilecfg %0" : "=m"(stored) : : "memory"); }).join();
  EXPECT_EQ(stored.palette, 0);
  asm volatile("sttilecfg %0\n\ttilerelease" : "=m"(stored) : : "memory");
  EXPECT_EQ(std::memcmp(&stored, &config, sizeof(config)), 0);
}

TEST_F(TileEmulatorTest, AFaultEndsTheProcessAndSaysWhy) {
  if (cpu::MachineHasTiles()) GTEST_SKIP() << "the processor's faults say nothing";
  EXPECT_DEATH(asm volatile("tilezero %%tmm0" ::: "memory"), "no tiles are configured");
  EXPECT_DEATH(asm volatile("ud2" ::: "memory"), "not an instruction of tiles");
}

TEST_F(TileEmulatorTest, AmxIsOfferedByNameAndNotTheBest) {
  if (cpu::MachineHasTiles()) GTEST_SKIP() << "the machine's own";
  ASSERT_TRUE(cpu::UseCpuTarget("").ok());
  EXPECT_EQ(CpuTargetName(), "AVX3_DL");
  EXPECT_FALSE(cpu::TilesInUse());
  ASSERT_TRUE(cpu::UseCpuTarget("AMX").ok());
  EXPECT_EQ(CpuTargetName(), "AMX");
  EXPECT_TRUE(cpu::TilesInUse());
  EXPECT_EQ(CpuTargetNames()[1], "AVX3_DL");
  ASSERT_TRUE(cpu::UseCpuTarget("").ok());
  EXPECT_FALSE(cpu::TilesInUse());
  EXPECT_EQ(testing::TestedTargets().back(), "AMX");
}

// ---- Codes that the kernels do not contain

TEST(TileInstructionTest, AddressesOfTheConfiguration) {
  const std::uint8_t next[] = {0xc4, 0xe2, 0x78, 0x49, 0x05, 0x10, 0, 0, 0};  // ldtilecfg 16(%rip)
  const auto relative = DecodeTileInstruction(next);
  ASSERT_TRUE(relative);
  EXPECT_EQ(relative->operation, TileOperation::kLoadConfig);
  EXPECT_EQ(relative->bytes, 9);
  EXPECT_EQ(relative->address.base, TileAddress::kNextInstruction);
  EXPECT_EQ(relative->address.displacement, 16);
  const std::uint8_t near[] = {0xc4, 0xe2, 0x79, 0x49, 0x45, 0xf0};  // sttilecfg -16(%rbp)
  const auto based = DecodeTileInstruction(near);
  ASSERT_TRUE(based);
  EXPECT_EQ(based->operation, TileOperation::kStoreConfig);
  EXPECT_EQ(based->bytes, 6);
  EXPECT_EQ(based->address.base, 5);
  EXPECT_EQ(based->address.index, TileAddress::kNone);
  EXPECT_EQ(based->address.displacement, -16);
}

TEST(TileInstructionTest, OtherInstructionsAreNotTaken) {
  const std::uint8_t ud2[] = {0x0f, 0x0b, 0, 0, 0, 0};
  EXPECT_FALSE(DecodeTileInstruction(ud2));
  const std::uint8_t wide[] = {0xc4, 0xe2, 0x7c, 0x49, 0xc0, 0};  // tilerelease with VEX.L
  EXPECT_FALSE(DecodeTileInstruction(wide));
  const std::uint8_t other[] = {0xc4, 0xe2, 0x7b, 0x5c, 0xc0, 0};  // an opcode without bytes
  EXPECT_FALSE(DecodeTileInstruction(other));
  const std::uint8_t used[] = {0xc4, 0xe2, 0x70, 0x49, 0xc0, 0};  // tilerelease with VEX.vvvv
  EXPECT_FALSE(DecodeTileInstruction(used));
}

}  // namespace
}  // namespace kvcache::tile_emulator_test

#endif
