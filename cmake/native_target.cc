// Prints the best instruction set of the building machine for which kvcache has kernels, by the
// name of Highway's constant. KvcacheCpuTargets.cmake runs it at configure time.
#include <cstdio>

#define HWY_WANT_AVX3_DL
#include "hwy/targets.h"

int main() {
  const auto targets = hwy::SupportedTargets();
  const char* name = "HWY_EMU128";
#if HWY_ARCH_X86
  // The same rule as in src/backend/cpu/cpu_target.cc: the kernels use the 512-bit VNNI.
  if ((targets & HWY_AVX3_DL) != 0 && __builtin_cpu_supports("avx512vnni")) {
    name = "HWY_AVX3_DL";
  } else if ((targets & HWY_AVX3) != 0) {
    name = "HWY_AVX3";
  } else if ((targets & HWY_AVX2) != 0) {
    name = "HWY_AVX2";
  }
#else
  static_cast<void>(targets);
#endif
  std::puts(name);
  return 0;
}
