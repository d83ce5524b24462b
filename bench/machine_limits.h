// The machine's limits with the instruction set in use, measured with small loops. The benchmarks
// compare their results with them.
//
// Thread safety: that of ThreadPool.
#pragma once

#include <cstddef>
#include <cstdint>
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

enum class IntegerProducts : std::uint8_t {
  kBytes,  // a byte of 8 bits with a signed one, added in 32 bits
  kSmall,  // the first byte has at most 4 bits
};

// Runs independent chains of products of bytes on all threads for some milliseconds, with the
// instructions that the kernels of the instruction set in use have for them. Returns GOP/s; a
// product and its addition are two operations. In int8_limit.cc.
//
//   AVX3_DL, AMX vpdpbusd, for both kinds; Int8TileGops measures AMX's tiles
//   AVX3, AVX2   vpmaddubsw adds pairs of products in 16 bits. Sums of 8 bits then fill these, so
//                vpmaddwd and vpaddd follow each; of small numbers many fit, so vpaddw follows
//   others       0: the kernels multiply 16-bit integers
double Int8DotGops(ThreadPool& pool, IntegerProducts products = IntegerProducts::kBytes,
                   Clock clock = Clock::kWall);

// Where the factors of tiles come from: products with and without their loads.
enum class TileFactors : std::uint8_t { kInRegisters, kFromCache };

// Runs products of tiles of bytes (AMX) on all threads for some milliseconds: 16 × 16 sums of 64 products. Returns
// GOP/s; 0 if the instruction set in use is not AMX. In amx/tile_limit.cc.
double Int8TileGops(ThreadPool& pool, TileFactors factors, Clock clock = Clock::kWall);

}  // namespace kvcache::bench
