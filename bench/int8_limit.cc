#include <atomic>
#include <cstdint>

#include "kvcache/cpu_backend.h"
#include "machine_limits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvcache::bench {

#if defined(__x86_64__)
namespace {

constexpr std::int64_t kSteps = 2'000'000;
constexpr double kOperations = 10.0 * 2.0 * 64.0 * kSteps;

std::atomic<std::int32_t> keep_sum;  // keeps the compiler from removing the loop

// Ten chains occupy two units with a latency of four or five cycles.
__attribute__((target("avx512f,avx512vnni"))) std::int32_t DotChains() {
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
  __m512i c0 = _mm512_setzero_si512(), c1 = c0, c2 = c0, c3 = c0, c4 = c0;
  __m512i c5 = c0, c6 = c0, c7 = c0, c8 = c0, c9 = c0;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    c0 = _mm512_dpbusd_epi32(c0, a, b), c1 = _mm512_dpbusd_epi32(c1, a, b);
    c2 = _mm512_dpbusd_epi32(c2, a, b), c3 = _mm512_dpbusd_epi32(c3, a, b);
    c4 = _mm512_dpbusd_epi32(c4, a, b), c5 = _mm512_dpbusd_epi32(c5, a, b);
    c6 = _mm512_dpbusd_epi32(c6, a, b), c7 = _mm512_dpbusd_epi32(c7, a, b);
    c8 = _mm512_dpbusd_epi32(c8, a, b), c9 = _mm512_dpbusd_epi32(c9, a, b);
  }
  for (const __m512i c : {c1, c2, c3, c4, c5, c6, c7, c8, c9}) c0 = _mm512_add_epi32(c0, c);
  std::int32_t lanes[16];
  _mm512_storeu_si512(lanes, c0);
  return lanes[0];
}

}  // namespace

double Int8DotGops(ThreadPool& pool, Clock clock) {
  if (CpuTargetName() != "AVX3_DL") return 0.0;
  const double start = Seconds(clock);
  pool.ParallelFor(pool.threads(), [](std::int64_t, int) { keep_sum += DotChains(); });
  return kOperations * pool.threads() / (Seconds(clock) - start) * 1e-9;
}
#else
double Int8DotGops(ThreadPool&, Clock) {
  return 0.0;
}
#endif

}  // namespace kvcache::bench
