// This file is compiled once per target because only a dispatched function knows the name of the
// target in use.
#include "backend/cpu/cpu_target.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/cpu_target.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/simd/highway-inl.h"
#include "kvcache/cpu_backend.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

std::int64_t TargetInUse() {
  return HWY_TARGET;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache {
namespace cpu {
HWY_EXPORT(TargetInUse);

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

// All targets that this machine can run, best first. Detected once, before any target is disabled:
// detecting again makes Highway 1.0 forget the disabled ones until the next DisableTargets.
const std::vector<std::int64_t>& MachineTargets() {
  static const std::vector<std::int64_t> targets = [] {
    std::vector<std::int64_t> all = hwy::SupportedAndGeneratedTargets();
    std::erase_if(all, [](std::int64_t t) { return (t & TargetsWithoutTheirVnni()) != 0; });
    hwy::DisableTargets(TargetsWithoutTheirVnni());
    return all;
  }();
  return targets;
}

// The bit of the best target that may be used. A better target has a lower bit.
std::atomic<std::int64_t> best_allowed = 1;

}  // namespace

Status UseCpuTarget(std::string_view name) {
  std::string names;
  for (const std::int64_t target : MachineTargets()) {
    if (name.empty() || name == hwy::TargetName(target)) {
      best_allowed = target;
      hwy::DisableTargets(TargetsWithoutTheirVnni() | (target - 1));
      // Choose the target now: otherwise the first of several concurrent kernels would do it.
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
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
  for (const std::int64_t target : cpu::MachineTargets()) {
    if (target >= cpu::best_allowed) names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

std::string CpuTargetName() {
  static_cast<void>(cpu::UseCpuTargetFromEnvironment().ok());
  return hwy::TargetName(HWY_DYNAMIC_DISPATCH(cpu::TargetInUse)());
}

}  // namespace kvcache
#endif  // HWY_ONCE
