#include "backend/cpu/cpu_tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace kvcache::cpu {

#if defined(__x86_64__) && defined(__linux__)
namespace {

constexpr unsigned kTileBit = 1U << 24;  // of EDX: AMX-TILE
constexpr unsigned kInt8Bit = 1U << 25;  // AMX-INT8

bool ProcessorHasTiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kTileBit) != 0 && (edx & kInt8Bit) != 0;
}

// Whether the system saves the tiles and their configuration of each thread.
bool SystemSavesTiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kSavesStates = 1U << 27;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kSavesStates) == 0) return false;
  std::uint32_t low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr std::uint32_t kTileStates = 3U << 17;
  return (low & kTileStates) == kTileStates;
}

bool AskPermission() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool MachineHasTiles() {
  return ProcessorHasTiles() && SystemSavesTiles() && AskPermission();
}
#else
bool MachineHasTiles() {
  return false;
}
#endif

}  // namespace kvcache::cpu
