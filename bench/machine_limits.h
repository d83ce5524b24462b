// The machine's limits with the instruction set in use, measured with small loops. The benchmarks
// compare their results with them.
//
// Thread safety: that of ThreadPool.
#pragma once

#include <cstddef>
#include <span>

#include "platform/thread_pool.h"

namespace kvcache::bench {

enum class Clock {
  kWall,
  kProcessor,  // processor time of all threads of this process
};
double Seconds(Clock clock);

// The plain loop leaves prefetching to the processor; the other one prefetches 16 KiB ahead. The
// location of the bytes decides which one is faster.
enum class Reading { kPlain, kFetchingAhead };

// Sums `bytes` once with vector loads on all threads. Returns seconds.
double SecondsToRead(ThreadPool& pool, std::span<const std::byte> bytes, Clock clock,
                     Reading reading = Reading::kPlain);

// Runs independent chains of f32 fused multiply-adds on all threads for some milliseconds. Returns
// GFLOP/s; a fused multiply-add counts as two operations.
double FmaGflops(ThreadPool& pool, Clock clock);

// The same with chains of vpdpbusd, dot products of int8. Returns GOP/s, or 0 if the instruction
// set in use has no AVX-512 VNNI: kernels then multiply 16-bit integers, at the rate of f32 FMA. In
// int8_limit.cc.
double Int8DotGops(ThreadPool& pool, Clock clock = Clock::kWall);

}  // namespace kvcache::bench
