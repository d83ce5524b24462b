// The peak of AMX's products of bytes, with factors in registers and from the second-level cache.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "amx/tile_instructions.h"
#include "kvcache/cpu_backend.h"
#include "machine_limits.h"

namespace kvcache::bench {

#if defined(__x86_64__)
namespace {

// A step multiplies two tiles of each factor with each other, and adds to four sums.
constexpr double kOperationsOfStep = 4 * 2.0 * 16 * 16 * 64;
constexpr std::int64_t kStepBytes = std::int64_t{4} * kTileBytes;
constexpr std::int64_t kCacheBytes =
    512 << 10;  // more than a first-level cache, less than a second-level one

void MultiplyRegisters(std::int64_t steps) {
  for (std::int64_t i = 0; i < steps; ++i) asm volatile(KVCACHE_FOUR_TILE_PRODUCTS : :);
}

void MultiplyFromMemory(const std::byte* memory, std::int64_t steps) {
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::byte* const at = memory + i * kStepBytes % kCacheBytes;
    asm volatile(
        "tileloadd (%0,%1,1), %%tmm4\n\t"
        "tileloadd 1024(%0,%1,1), %%tmm6\n\t"
        "tileloadd 2048(%0,%1,1), %%tmm7\n\t"
        "tileloadd 3072(%0,%1,1), %%tmm5\n\t" KVCACHE_FOUR_TILE_PRODUCTS
        :
        : "r"(at), "r"(std::int64_t{64})
        : "memory");
  }
}

}  // namespace

double Int8TileGops(ThreadPool& pool, TileFactors factors, Clock clock) {
  if (CpuTargetName() != "AMX") return 0.0;
  constexpr std::int64_t kSteps = 200'000;
  std::vector<std::vector<std::byte>> memory(static_cast<std::size_t>(pool.threads()));
  if (factors == TileFactors::kFromCache) {
    for (auto& bytes : memory) bytes.resize(kCacheBytes, std::byte{1});
  }
  const double start = Seconds(clock);
  pool.ParallelFor(pool.threads(), [&](std::int64_t task, int) {
    const TilesOfShape tiles(16, 64);
    if (factors == TileFactors::kInRegisters) {
      MultiplyRegisters(kSteps);
    } else {
      MultiplyFromMemory(memory[static_cast<std::size_t>(task)].data(), kSteps);
    }
  });
  return kOperationsOfStep * kSteps * pool.threads() / (Seconds(clock) - start) * 1e-9;
}
#else
double Int8TileGops(ThreadPool&, TileFactors, Clock) {
  return 0.0;
}
#endif

}  // namespace kvcache::bench
