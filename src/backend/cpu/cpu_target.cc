#include "backend/cpu/cpu_target.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/cpu_tiles.h"
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

// Whether the processor multiplies the bytes of one of Highway's targets in this way too.
bool HasProducts([[maybe_unused]] std::int64_t bit, [[maybe_unused]] ByteProducts products) {
#if HWY_ARCH_X86
  if (bit != HWY_AVX2 || products != ByteProducts::kFours) return false;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1U << 4)) != 0;
#elif defined(__aarch64__) && defined(__linux__)
  const bool has_fours = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool has_matrices = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return has_fours && (products == ByteProducts::kFours || has_matrices);
#else
  return false;
#endif
}

// Whether a target of Highway's has the vectors that AMX is used with.
bool IsForTiles([[maybe_unused]] std::int64_t bit) {
#if HWY_ARCH_X86
  return bit == HWY_AVX3_DL;
#else
  return false;
#endif
}

struct Target {
  std::int64_t bit = 0;  // Highway's. A better target has a lower one
  ByteProducts products = ByteProducts::kOfTarget;
  bool tiles = false;
  bool emulated = false;  // and so never the best

  std::string Name() const {
    if (tiles) return "AMX";
    if (products == ByteProducts::kOfTarget) return hwy::TargetName(bit);
    if (products == ByteProducts::kMatrix) return "NEON_I8MM";
    return HWY_ARCH_X86 ? "AVX_VNNI" : "NEON_DOTPROD";
  }
};

// Highway's targets of this machine, best first.
std::vector<std::int64_t> HighwayTargets() {
  std::vector<std::int64_t> bits = hwy::SupportedAndGeneratedTargets();
  // Highway detects NEON only with AES, which no kernel uses.
  if (bits.empty()) bits.push_back(HWY_STATIC_TARGET);
  return bits;
}

// Empty if the environment names none.
std::string_view TargetOfEnvironment() {
  const char* const name = std::getenv("KVCACHE_CPU_TARGET");
  return name == nullptr ? "" : name;
}

// All targets that this machine can run, best first. Detected once, before any target is disabled:
// detecting again makes Highway 1.0 forget the disabled ones until the next DisableTargets.
std::vector<Target>& MachineTargets() {
  static std::vector<Target> targets = [] {
    std::vector<Target> all;
    for (const std::int64_t bit : HighwayTargets()) {
      if ((bit & TargetsWithoutTheirVnni()) != 0) continue;
      for (const auto products : {ByteProducts::kMatrix, ByteProducts::kFours}) {
        if (HasProducts(bit, products)) all.push_back({bit, products});
      }
      all.push_back({bit});
    }
    hwy::DisableTargets(TargetsWithoutTheirVnni());
    // The system's permission for tiles limits the whole process (docs/design/backend.md). A process whose environment
    // names another target does not ask for the permission.
    const bool names_other =
        std::ranges::find(all, TargetOfEnvironment(), &Target::Name) != all.end();
    const auto at = std::ranges::find_if(all, IsForTiles, &Target::bit);
    if (!names_other && at != all.end() && MachineHasTiles()) {
      all.insert(at, {at->bit, ByteProducts::kOfTarget, /*tiles=*/true});
    }
    return all;
  }();
  return targets;
}

// The index in MachineTargets of the target in use.
std::atomic<std::size_t> in_use = 0;
std::atomic<ByteProducts> products_in_use = ByteProducts::kOfTarget;
std::atomic<bool> tiles_in_use = false;

}  // namespace

ByteProducts ByteProductsInUse() {
  return products_in_use.load(std::memory_order_relaxed);
}

bool TilesInUse() {
  return tiles_in_use.load(std::memory_order_relaxed);
}

bool OfferEmulatedTiles() {
  std::vector<Target>& targets = MachineTargets();
  const auto at = std::ranges::find_if(targets, IsForTiles, &Target::bit);
  if (at == targets.end()) return false;
  if (at->tiles) return true;
  if (in_use >= static_cast<std::size_t>(at - targets.begin())) ++in_use;
  targets.insert(at, {at->bit, ByteProducts::kOfTarget, /*tiles=*/true, /*emulated=*/true});
  return true;
}

Status UseCpuTarget(std::string_view name) {
  std::string names;
  for (std::size_t i = 0; i < MachineTargets().size(); ++i) {
    const Target& target = MachineTargets()[i];
    if (name.empty() ? !target.emulated : name == target.Name()) {
      in_use = i;
      products_in_use = target.products;
      tiles_in_use = target.tiles;
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
    return UseCpuTarget(TargetOfEnvironment()).WithContext("KVCACHE_CPU_TARGET");
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
