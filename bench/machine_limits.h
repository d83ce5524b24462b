// What the machine can do at most, measured with plain loops: the yardstick of the benchmarks.
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

// As the processor does by itself, or asking for memory 16 KiB ahead: which one is faster
// depends on where the bytes are.
enum class Reading { kPlain, kFetchingAhead };

// Sums `bytes` once with vector loads on all threads; returns seconds.
double SecondsToRead(ThreadPool& pool, std::span<const std::byte> bytes, Clock clock,
                     Reading reading = Reading::kPlain);

// Runs independent chains of f32 fused multiply-adds on all threads for some milliseconds;
// returns GFLOP/s, an addition and a multiplication each counted.
double FmaGflops(ThreadPool& pool, Clock clock);

// The same with chains of vpdpbusd, dot products of int8; GOP/s, or 0 where the machine has no
// AVX-512 VNNI. In int8_limit.cc.
double Int8DotGops(ThreadPool& pool, Clock clock = Clock::kWall);

}  // namespace kvcache::bench
