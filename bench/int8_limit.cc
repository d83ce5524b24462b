#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "kvcache/cpu_backend.h"
#include "machine_limits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvcache::bench {

#if defined(__x86_64__)
namespace {

constexpr std::int64_t kSteps = 1'000'000;
constexpr int kChains = 10;  // occupy two units with a latency of four or five cycles

std::atomic<std::int32_t> keep_sum;  // keeps the compiler from removing the loops

// A step of a chain multiplies a register of bytes. Steps without an accumulating instruction
// multiply their own sum, so that the compiler cannot move the product out of the loop.
#define KVCACHE_STEP(target_name) __attribute__((target(target_name), always_inline)) inline

struct Dot512 {
  using Sum = __m512i;
  static KVCACHE_STEP("avx512f,avx512bw,avx512vnni") Sum Begin(int i) {
    return _mm512_set1_epi32(i);
  }
  static KVCACHE_STEP("avx512f,avx512bw,avx512vnni") void Add(Sum& sum) {
    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(3), _mm512_set1_epi8(-2));
  }
};

struct Dot256 {
  using Sum = __m256i;
  static KVCACHE_STEP("avx2,avxvnni") Sum Begin(int i) { return _mm256_set1_epi32(i); }
  static KVCACHE_STEP("avx2,avxvnni") void Add(Sum& sum) {
    sum = _mm256_dpbusd_avx_epi32(sum, _mm256_set1_epi8(3), _mm256_set1_epi8(-2));
  }
};

template <IntegerProducts kKind>
struct Pairs512 {
  using Sum = __m512i;
  static KVCACHE_STEP("avx512f,avx512bw") Sum Begin(int i) { return _mm512_set1_epi32(i); }
  static KVCACHE_STEP("avx512f,avx512bw") void Add(Sum& sum) {
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(3), sum);
    sum = kKind == IntegerProducts::kBytes
              ? _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
              : _mm512_add_epi16(sum, pairs);
  }
};

template <IntegerProducts kKind>
struct Pairs256 {
  using Sum = __m256i;
  static KVCACHE_STEP("avx2") Sum Begin(int i) { return _mm256_set1_epi32(i); }
  static KVCACHE_STEP("avx2") void Add(Sum& sum) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(3), sum);
    sum = kKind == IntegerProducts::kBytes
              ? _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
              : _mm256_add_epi16(sum, pairs);
  }
};

#undef KVCACHE_STEP

// Runs ten chains, with a variable each: the compiler would keep an array in memory. A function has
// the instruction set of its attribute, so there is one for each.
#define KVCACHE_RUN_CHAINS(Name, target_name)                                          \
  template <class Step>                                                                \
  __attribute__((target(target_name))) std::int32_t Name() {                           \
    typename Step::Sum c0 = Step::Begin(0), c1 = Step::Begin(1), c2 = Step::Begin(2);  \
    typename Step::Sum c3 = Step::Begin(3), c4 = Step::Begin(4), c5 = Step::Begin(5);  \
    typename Step::Sum c6 = Step::Begin(6), c7 = Step::Begin(7), c8 = Step::Begin(8);  \
    typename Step::Sum c9 = Step::Begin(9);                                            \
    for (std::int64_t i = 0; i < kSteps; ++i) {                                        \
      Step::Add(c0), Step::Add(c1), Step::Add(c2), Step::Add(c3), Step::Add(c4);       \
      Step::Add(c5), Step::Add(c6), Step::Add(c7), Step::Add(c8), Step::Add(c9);       \
    }                                                                                  \
    const typename Step::Sum sums[kChains] = {c0, c1, c2, c3, c4, c5, c6, c7, c8, c9}; \
    std::int32_t total = 0;                                                            \
    for (const auto& sum : sums) {                                                     \
      std::int32_t first = 0;                                                          \
      std::memcpy(&first, &sum, sizeof(first));                                        \
      total ^= first;                                                                  \
    }                                                                                  \
    return total;                                                                      \
  }

KVCACHE_RUN_CHAINS(RunVnni512, "avx512f,avx512bw,avx512vnni")
KVCACHE_RUN_CHAINS(RunAvx512, "avx512f,avx512bw")
KVCACHE_RUN_CHAINS(RunAvxVnni, "avx2,avxvnni")
KVCACHE_RUN_CHAINS(RunAvx2, "avx2")
#undef KVCACHE_RUN_CHAINS

struct Rate {
  std::int32_t (*run)() = nullptr;
  int bytes = 0;  // of a register
};

template <IntegerProducts kKind>
Rate RateOf(const std::string& target) {
  if (target == "AVX3_DL" || target == "AMX") return {RunVnni512<Dot512>, 64};
  if (target == "AVX3") return {RunAvx512<Pairs512<kKind>>, 64};
  if (target == "AVX_VNNI") return {RunAvxVnni<Dot256>, 32};
  if (target == "AVX2") return {RunAvx2<Pairs256<kKind>>, 32};
  return {};
}

}  // namespace

double Int8DotGops(ThreadPool& pool, IntegerProducts products, Clock clock) {
  const std::string target = CpuTargetName();
  const Rate rate = products == IntegerProducts::kBytes ? RateOf<IntegerProducts::kBytes>(target)
                                                        : RateOf<IntegerProducts::kSmall>(target);
  if (rate.run == nullptr) return 0.0;
  const double start = Seconds(clock);
  pool.ParallelFor(pool.threads(), [&](std::int64_t, int) { keep_sum += rate.run(); });
  const double operations = 2.0 * kChains * rate.bytes * static_cast<double>(kSteps);
  return operations * pool.threads() / (Seconds(clock) - start) * 1e-9;
}
#else
double Int8DotGops(ThreadPool&, IntegerProducts, Clock) {
  return 0.0;
}
#endif

}  // namespace kvcache::bench
