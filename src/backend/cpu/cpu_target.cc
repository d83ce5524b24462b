#include "backend/cpu/cpu_target.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/simd/targets.h"

// After targets.h.
#include "backend/cpu/simd/highway-inl.h"
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

// AVX_VNNI is a target of this library: Highway's AVX2, with the kernels of linear layers that use
// AVX-VNNI.
bool HasAvxVnni() {
#if HWY_ARCH_X86
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1U << 4)) != 0;
#else
  return false;
#endif
}

struct Target {
  std::int64_t bit = 0;  // Highway's. A better target has a lower one
  bool avx_vnni = false;

  std::string Name() const { return avx_vnni ? "AVX_VNNI" : hwy::TargetName(bit); }
};

// All targets that this machine can run, best first. Detected once, before any target is disabled:
// detecting again makes Highway 1.0 forget the disabled ones until the next DisableTargets.
const std::vector<Target>& MachineTargets() {
  static const std::vector<Target> targets = [] {
    std::vector<Target> all;
    for (const std::int64_t bit : hwy::SupportedAndGeneratedTargets()) {
      if ((bit & TargetsWithoutTheirVnni()) != 0) continue;
      if (bit == HWY_AVX2 && HasAvxVnni()) all.push_back({bit, true});
      all.push_back({bit, false});
    }
    hwy::DisableTargets(TargetsWithoutTheirVnni());
    return all;
  }();
  return targets;
}

// The index in MachineTargets of the target in use.
std::atomic<std::size_t> in_use = 0;
std::atomic<bool> avx_vnni_in_use = false;

}  // namespace

bool IsAvxVnniInUse() {
  return avx_vnni_in_use.load(std::memory_order_relaxed);
}

Status UseCpuTarget(std::string_view name) {
  std::string names;
  for (std::size_t i = 0; i < MachineTargets().size(); ++i) {
    const Target& target = MachineTargets()[i];
    if (name.empty() || name == target.Name()) {
      in_use = i;
      avx_vnni_in_use = target.avx_vnni;
      hwy::DisableTargets(TargetsWithoutTheirVnni() | (target.bit - 1));
      // Choose the target now: otherwise the first of several concurrent kernels would do it.
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return Status::Ok();
    }
    names += std::string(names.empty() ? "" : ", ") + target.Name();
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
  for (std::size_t i = cpu::in_use; i < cpu::MachineTargets().size(); ++i) {
    names.push_back(cpu::MachineTargets()[i].Name());
  }
  return names;
}

std::string CpuTargetName() {
  static_cast<void>(cpu::UseCpuTargetFromEnvironment().ok());
  return cpu::MachineTargets()[cpu::in_use].Name();
}

}  // namespace kvcache
