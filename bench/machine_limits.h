// The machine's limits with the instruction set in use, measured with small loops. The benchmarks
// compare their results with them.
//
// Thread safety: as ThreadPool's.
#pragma once

#include <cstddef>
#include <span>

#include "platform/thread_pool.h"

namespace kvcache::bench {

enum class Clock {
  kWall,
  kProcessor,  // time that this process's threads ran, added up
};
double Seconds(Clock clock);

// The plain loop leaves prefetching to the processor; the other one prefetches 16 KiB ahead. Which
// one is faster depends on the place of the bytes.
enum class Reading { kPlain, kFetchingAhead };

// Sums `bytes` once with vector loads on all threads; returns seconds.
double SecondsToRead(ThreadPool& pool, std::span<const std::byte> bytes, Clock clock,
                     Reading reading = Reading::kPlain);

// Runs independent chains of f32 fused multiply-adds on all threads for some milliseconds;
// returns GFLOP/s, an addition and a multiplication each counted.
double FmaGflops(ThreadPool& pool, Clock clock);

// The same with chains of vpdpbusd, dot products of int8. Returns GOP/s, or 0 if the instruction
// set in use has no AVX-512 VNNI: kernels then multiply 16-bit integers, at the rate of f32 FMA. In
// int8_limit.cc.
double Int8DotGops(ThreadPool& pool, Clock clock = Clock::kWall);

}  // namespace kvcache::bench
