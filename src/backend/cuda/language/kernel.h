// The language of kernels: everything that a kernel uses of a GPU. A kernel is compiled twice from the
// same source: by nvcc for devices (language/on_device-inl.h), and by the C++ compiler for the shim
// (language/on_shim-inl.h), which runs the threads of a block as fibers and checks every access to
// memory. A kernel uses nothing else of CUDA; so the device runs the source that the shim has checked, from another
// compiler (docs/design/cuda.md names what the shim cannot find).
//
//   struct AddArgs { const float* x; float* y; std::int64_t values; };
//   KVCACHE_KERNEL(add, AddArgs, 256) {
//     const std::int64_t i = BlockX() * 256 + Thread();
//     if (i < args.values) args.y[i] = Add(args.y[i], args.x[i]);
//   }
//
// Rules for kernels:
// - Blocks have one dimension. The number of threads is a constant of the kernel.
// - Arguments are one trivially copyable struct of at most 4,000 bytes. Addresses in it are the device's.
// - Shared memory is one struct, from SharedMemory<T>(); the launch names its size. It holds nothing
//   defined when a block starts.
// - Floats are added and multiplied by the functions of the arithmetic (Add, Mul, Fma, …), never by + or
//   *, so that no compiler fuses or reorders them.
// - A barrier or a collective function (shuffles, Ballot, MmaS8) is reached by all threads of the block or
//   warp.
// - A block may start before earlier launches have ended (on devices from 9.0 on). KVCACHE_KERNEL waits for them before
//   the body; KVCACHE_WAITING_KERNEL leaves that to the body: each thread calls WaitForEarlier, and before it touches
//   shared memory and reads what no kernel ever writes (weights), nothing else of global memory.
// - Between blocks of one launch there is no communication: what another block needs is left to the next
//   launch.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include "backend/cuda/language/on_device-inl.h"
#else
#include "backend/cuda/language/on_shim-inl.h"
#endif

// Both define, in namespace kvcache::cuda (KVCACHE_DEVICE marks a function that kernels call, KVCACHE_OUTLINED
// one that is seldom called and not inlined, KVCACHE_TABLE
// an array of constants that they read; KVCACHE_UNROLL stands before a loop that nvcc has to unroll, KVCACHE_UNROLL_BY(n) before one that it
// unrolls n times, or not at all with 1):
//
//   KVCACHE_KERNEL(name, Args, threads) { body }   a kernel `name` with `const Args& args`
//
//   KVCACHE_WAITING_KERNEL(name, Args, threads) { body }   the same; the body calls WaitForEarlier
//   void WaitForEarlier();                          all that earlier launches write is there
//
//   int Thread();  int Lane();  int Warp();         in the block; in the warp; the warp in the block
//   int BlockX();  int BlockY();  int BlockZ();     the block in the grid
//   int GridX();                                    blocks along x
//   template <class T> T& SharedMemory();
//
//   void BlockBarrier();                            orders the accesses of all threads of the block
//   void WarpBarrier();                             orders those of the warp's threads
//   T ShuffleXor(T value, int mask);                T is float, int32_t or uint32_t; all 32 lanes take part
//   T Shuffle(T value, int lane);
//   std::uint32_t Ballot(bool value);
//   std::int32_t LargestOfWarp(std::int32_t value); of all 32 lanes
//   std::int32_t SumOfWarp(std::int32_t value);     modulo 2^32
//   int PopCount(std::uint32_t value);              bits that are set
//
//   // d += a b for int8: a is 16 × 32, b is 32 × 8, d is 16 × 8, int32, in the fragments of
//   // mma.m16n8k32: lane l, with g = l / 4 and t = l % 4, has
//   //   a[0]: row g, columns 4t … 4t+3      a[1]: row g + 8, the same columns
//   //   a[2]: row g, columns 16 + 4t …      a[3]: row g + 8, the same columns
//   //   b[0]: rows 4t … 4t+3, column g      b[1]: rows 16 + 4t …, column g
//   //   d[0], d[1]: row g, columns 2t, 2t+1     d[2], d[3]: row g + 8
//   void MmaS8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
//   // The same with unsigned a.
//   void MmaU8S8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
//   // d = c + a b with unsigned a: saves the copies where sums begin at something else than 0.
//   void MmaU8S8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
//                const std::int32_t (&c)[4]);
//   // The same for half as many inputs: a is 16 × 16, with a[0] and a[1] as above, and b is 16 × 8.
//   void MmaS8Of16(std::int32_t (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b);
//   // Returns four bytes of the eight of a (0 to 3) and b (4 to 7): byte i is the one that bits 4 i to
//   // 4 i + 2 of the selector number. The fourth bit of each is 0; bits from 16 on are ignored.
//   std::uint32_t BytePermute(std::uint32_t a, std::uint32_t b, std::uint32_t selector);
//   // c + the dot product of four int8 of a and four of b.
//   std::int32_t Dp4a(std::uint32_t a, std::uint32_t b, std::int32_t c);
//
//   // Reads a value of 1, 2, 4, 8 or 16 bytes (aligned) of global memory that no thread of the launch writes.
//   template <class T> T LoadOnly(const T* at);
//   // The same for what no kernel ever writes, such as weights: it may come before WaitForEarlier.
//   template <class T> T LoadConstant(const T* at);
//
//   // Copies 16 bytes (aligned) to shared memory in the background. They are there after AsyncWait, and
//   // other threads see them after a barrier behind it.
//   void AsyncCopy16(void* shared, const void* global);
//   void AsyncCommit();                             closes a group of copies
//   template <int kPending> void AsyncWait();       waits until at most kPending groups are open
//
//   float Fma(float a, float b, float c);  Add, Sub, Mul, Div, Sqrt: each rounded once, to nearest even
//   float FromHalf(std::uint16_t);  std::uint16_t ToHalf(float);      IEEE f16, to nearest even
//   float FromBFloat(std::uint16_t);  std::uint16_t ToBFloat(float);
//   std::uint32_t BitsOf(float);  float FloatOf(std::uint32_t);
