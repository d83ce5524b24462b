// What the machine can do at most with the instruction set in use, measured with small loops: the
// yardstick of the benchmarks.
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

// As anybody would write it, where the processor fetches ahead by itself, or asking for memory
// 16 KiB ahead: which one is faster depends on where the bytes are.
enum class Reading { kPlain, kFetchingAhead };

// Sums `bytes` once with vector loads on all threads; returns seconds.
double SecondsToRead(ThreadPool& pool, std::span<const std::byte> bytes, Clock clock,
                     Reading reading = Reading::kPlain);

// Runs independent chains of f32 fused multiply-adds on all threads for some milliseconds;
// returns GFLOP/s, an addition and a multiplication each counted.
double FmaGflops(ThreadPool& pool, Clock clock);

// The same with chains of vpdpbusd, dot products of int8; GOP/s, or 0 where the instruction set in
// use is without AVX-512 VNNI: kernels then multiply integers of 16 bits, at the rate of f32 FMA.
// In int8_limit.cc.
double Int8DotGops(ThreadPool& pool, Clock clock = Clock::kWall);

}  // namespace kvcache::bench
