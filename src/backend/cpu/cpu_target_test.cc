#include "backend/cpu/cpu_target.h"

#include <gtest/gtest.h>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#endif

#include <string>
#include <vector>

#include "kvcache/cpu_backend.h"

namespace kvcache::cpu_target_test {
namespace {

TEST(CpuTargetTest, EachNameThatTheMachineOffersCanBeForced) {
  const std::vector<std::string> names = CpuTargetNames();
  ASSERT_FALSE(names.empty());
  for (std::size_t i = 0; i < names.size(); ++i) {
    ASSERT_TRUE(cpu::UseCpuTarget(names[i]).ok());
    EXPECT_EQ(CpuTargetName(), names[i]);
    EXPECT_EQ(CpuTargetNames().size(), names.size() - i);
    EXPECT_EQ(CpuTargetName(), names[i]) << "CpuTargetNames must not change the target";
  }
  ASSERT_TRUE(cpu::UseCpuTarget("").ok());
  EXPECT_EQ(CpuTargetNames(), names);
}

TEST(CpuTargetTest, TheNameTellsHowBytesAreMultiplied) {
  for (const std::string& name : CpuTargetNames()) {
    ASSERT_TRUE(cpu::UseCpuTarget(name).ok());
    const bool fours = name == "AVX_VNNI" || name == "NEON_DOTPROD";
    const auto products = name == "NEON_I8MM" ? cpu::ByteProducts::kMatrix
                          : fours             ? cpu::ByteProducts::kFours
                                              : cpu::ByteProducts::kOfTarget;
    EXPECT_EQ(cpu::ByteProductsInUse(), products) << name;
  }
  ASSERT_TRUE(cpu::UseCpuTarget("").ok());
}

TEST(CpuTargetTest, UnknownNameIsAnErrorThatListsTheOthers) {
  const Status status = cpu::UseCpuTarget("AVX9");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'AVX9'"), std::string::npos);
  EXPECT_NE(status.message().find(CpuTargetName()), std::string::npos);
}

#if defined(__x86_64__) && defined(__linux__)
// Whether the process has the system's permission to use matrix tiles. False on a system that knows none.
bool MayUseTiles() {
  constexpr long kGetPermission = 0x1022;  // ARCH_GET_XCOMP_PERM
  std::uint64_t states = 0;
  return syscall(SYS_arch_prctl, kGetPermission, &states) == 0 && (states >> 18 & 1) != 0;
}

// Another process, because a permission cannot be given back. Fails only on a machine with AMX.
TEST(CpuTargetDeathTest, ThePermissionForTilesIsForProcessesThatMayUseThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string lowest = CpuTargetNames().back();
  for (const std::string& name : {std::string(), lowest}) {
    ASSERT_EQ(setenv("KVCACHE_CPU_TARGET", name.c_str(), /*overwrite=*/1), 0);
    EXPECT_EXIT(
        {
          const bool is_amx = CpuTargetName() == "AMX";
          std::exit(MayUseTiles() == is_amx ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "")
        << name;
  }
  ASSERT_EQ(unsetenv("KVCACHE_CPU_TARGET"), 0);
}
#endif

TEST(MakeCpuBackendTest, RefusesInvalidThreadCounts) {
  for (const int threads : {-1, 1'000'000}) {
    const Result<std::unique_ptr<Backend>> backend = MakeCpuBackend({.threads = threads});
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(backend.status().message().find(std::to_string(threads)), std::string::npos);
  }
}

TEST(MakeCpuBackendTest, AllocatesZeroedMemoryAndReportsFailures) {
  const Result<std::unique_ptr<Backend>> backend = MakeCpuBackend({.threads = 2});
  ASSERT_TRUE(backend.ok());
  const Result<std::unique_ptr<Buffer>> buffer = (*backend)->Allocate(4096);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ((*buffer)->size_bytes(), 4096u);
  for (int i = 0; i < 4096; ++i) ASSERT_EQ((*buffer)->data()[i], std::byte{0});
  EXPECT_EQ((*backend)->Allocate(std::size_t{1} << 62).status().code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace kvcache::cpu_target_test
