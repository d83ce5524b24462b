#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine_limits.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// REQUIRES: count is a multiple of 4 vectors.
template <bool kFetchAhead>
std::uint64_t SumWords(const std::uint64_t* words, std::size_t count) {
  constexpr std::size_t kAhead = 2048;  // words
  constexpr std::size_t kLine = 8;
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d);
  auto s1 = s0;
  auto s2 = s0;
  auto s3 = s0;
  for (std::size_t i = 0; i < count; i += 4 * lanes) {
    for (std::size_t line = 0; kFetchAhead && line < 4 * lanes; line += kLine) {
      hwy::Prefetch(words + std::min(count, i + kAhead) + line);
    }
    s0 = hn::Add(s0, hn::LoadU(d, words + i));
    s1 = hn::Add(s1, hn::LoadU(d, words + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, words + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

std::uint64_t SumPlainly(const std::uint64_t* words, std::size_t count) {
  return SumWords<false>(words, count);
}

std::uint64_t SumFetchingAhead(const std::uint64_t* words, std::size_t count) {
  return SumWords<true>(words, count);
}

// Twelve chains occupy two units with a latency of four or five cycles.
float FmaChains(float start, std::int64_t steps, double* operations) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f);
  const auto b = hn::Set(d, 0.001f);
  // Chains begin with different values, because the compiler would compute equal chains once.
  auto s0 = hn::Set(d, start);
  auto s1 = hn::Add(s0, b), s2 = hn::Add(s1, b), s3 = hn::Add(s2, b), s4 = hn::Add(s3, b);
  auto s5 = hn::Add(s4, b), s6 = hn::Add(s5, b), s7 = hn::Add(s6, b), s8 = hn::Add(s7, b);
  auto s9 = hn::Add(s8, b), s10 = hn::Add(s9, b), s11 = hn::Add(s10, b);
  for (std::int64_t i = 0; i < steps; ++i) {
    s0 = hn::MulAdd(s0, a, b);
    s1 = hn::MulAdd(s1, a, b);
    s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b);
    s4 = hn::MulAdd(s4, a, b);
    s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b);
    s7 = hn::MulAdd(s7, a, b);
    s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b);
    s10 = hn::MulAdd(s10, a, b);
    s11 = hn::MulAdd(s11, a, b);
  }
  *operations = 2.0 * 12.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(steps);
  const auto t0 = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
  const auto t1 = hn::Add(hn::Add(s4, s5), hn::Add(s6, s7));
  const auto t2 = hn::Add(hn::Add(s8, s9), hn::Add(s10, s11));
  return hn::GetLane(hn::Add(t0, hn::Add(t1, t2)));
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::bench {
HWY_EXPORT(SumPlainly);
HWY_EXPORT(SumFetchingAhead);
HWY_EXPORT(FmaChains);

namespace {

std::atomic<std::uint64_t> keep_sum;  // keeps the compiler from removing the loops

}  // namespace

double Seconds(Clock clock) {
  timespec now{};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double SecondsToRead(ThreadPool& pool, std::span<const std::byte> bytes, Clock clock,
                     Reading reading) {
  constexpr std::size_t kPiece = std::size_t{1} << 17;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(bytes.data());
  const std::size_t count = bytes.size() / 512 * 64;
  const std::size_t piece = kPiece / sizeof(std::uint64_t);
  const double start = Seconds(clock);
  pool.ParallelFor(static_cast<std::int64_t>((count + piece - 1) / piece),
                   [&](std::int64_t task, int) {
                     const std::size_t begin = static_cast<std::size_t>(task) * piece;
                     const std::size_t size = std::min(piece, count - begin);
                     keep_sum += reading == Reading::kPlain
                                     ? HWY_DYNAMIC_DISPATCH(SumPlainly)(words + begin, size)
                                     : HWY_DYNAMIC_DISPATCH(SumFetchingAhead)(words + begin, size);
                   });
  return Seconds(clock) - start;
}

double FmaGflops(ThreadPool& pool, Clock clock) {
  constexpr std::int64_t kSteps = 500'000;
  double operations = 0.0;
  const double start = Seconds(clock);
  pool.ParallelFor(pool.threads(), [&](std::int64_t task, int) {
    double mine = 0.0;
    keep_sum += static_cast<std::uint64_t>(HWY_DYNAMIC_DISPATCH(FmaChains)(2.0f, kSteps, &mine));
    if (task == 0) operations = mine;
  });
  return operations * pool.threads() / (Seconds(clock) - start) * 1e-9;
}

}  // namespace kvcache::bench
#endif  // HWY_ONCE
