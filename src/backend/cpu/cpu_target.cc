#include "backend/cpu/cpu_target.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/targets.h"
#include "hwy/highway.h"
#include "kvcache/cpu_backend.h"

namespace kvcache {
namespace cpu {
namespace {

// Highway's test for AVX3_DL and the compiler's flag for it name two VNNI extensions; the
// kernels use the 512-bit one.
std::int64_t TargetsWithoutTheirVnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") ? 0 : HWY_AVX3_DL;
#else
  return 0;
#endif
}

}  // namespace

Status UseCpuTarget(std::string_view name) {
  hwy::DisableTargets(TargetsWithoutTheirVnni());
  if (name.empty()) return Status::Ok();
  std::string names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) {
      hwy::DisableTargets(TargetsWithoutTheirVnni() | (target - 1));  // lower bits are better
      return Status::Ok();
    }
    names += std::string(names.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  return Status(StatusCode::kInvalidArgument,
                "instruction set '" + std::string(name) + "': this machine offers " + names);
}

Status UseCpuTargetFromEnvironment() {
  static const Status status = [] {
    const char* const name = std::getenv("KVCACHE_CPU_TARGET");
    return UseCpuTarget(name == nullptr ? "" : name).WithContext("KVCACHE_CPU_TARGET");
  }();
  return status;
}

}  // namespace cpu

std::vector<std::string> CpuTargetNames() {
  static_cast<void>(cpu::UseCpuTargetFromEnvironment().ok());
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

std::string CpuTargetName() {
  return CpuTargetNames().front();
}

}  // namespace kvcache
