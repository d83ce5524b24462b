// Rotates stored keys: a block of threads for each run of cells, within a tile, and head.
#include "backend/cuda/kv/shift_kernels.h"

#include "backend/cuda/kv/block_rows-inl.h"
#include "backend/cuda/kv/float_units-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_DEVICE void RotatePair(float cosine, float sine, float& a, float& b) {
  const float rotated = Fma(a, cosine, -Mul(b, sine));
  b = Fma(a, sine, Mul(b, cosine));
  a = rotated;
}

// Blocks: (run, head).
KVCACHE_KERNEL(kv_shift_floats, ShiftArgs, ShiftArgs::kThreads) {
  const CellRun run = At(args.runs, BlockX());
  const int head = BlockY();
  for (int i = Thread(); i < run.length * args.pairs; i += ShiftArgs::kThreads) {
    const int cell = run.cell + i % run.length;
    const int pair = i / run.length;
    const int first = args.first + pair * args.near;
    std::byte* const at_a = At(args.units, head, cell, first);
    std::byte* const at_b = At(args.units, head, cell, first + args.second);
    float a = ReadFloat(args.type, at_a);
    float b = ReadFloat(args.type, at_b);
    RotatePair(args.cosines[pair], args.sines[pair], a, b);
    WriteFloat(args.type, at_a, a);
    WriteFloat(args.type, at_b, b);
  }
}

// Reads, transforms back (the matrix is its own inverse), rotates, transforms and rounds again.
template <bool kBytes>
KVCACHE_DEVICE void ShiftBlocks(const ShiftArgs& args, int cell, int head, float* row) {
  const int lane = Lane();
  const int first = args.latent / 32;
  for (int block = first; block < args.dim / 32; ++block) {
    row[block * 32 + lane] = ReadKeyBlock<kBytes>(args.units, args.scales, head, cell, block);
  }
  float* const moved = row + args.latent;
  HadamardRow(moved, args.dim - args.latent, args.hadamard, args.hadamard_factor);
  WarpBarrier();
  for (int pair = lane; pair < args.pairs; pair += 32) {
    float* const a = row + args.first + pair * args.near;
    RotatePair(args.cosines[pair], args.sines[pair], a[0], a[args.second]);
  }
  WarpBarrier();
  HadamardRow(moved, args.dim - args.latent, args.hadamard, args.hadamard_factor);
  for (int block = first; block < args.dim / 32; ++block) {
    const float x = row[block * 32 + lane];
    WriteKeyBlock<kBytes>(args.units, args.scales, head, cell, block, x, LargestOf(x));
  }
}

// Blocks: (run, head). Shared memory: a key for each warp.
KVCACHE_KERNEL(kv_shift_blocks, ShiftArgs, ShiftArgs::kThreads) {
  const CellRun run = At(args.runs, BlockX());
  float* const row = &SharedMemory<float>() + Warp() * args.dim;
  for (int i = Warp(); i < run.length; i += ShiftArgs::kThreads / 32) {
    if (args.type == DType::kQ8_0) {
      ShiftBlocks<true>(args, run.cell + i, BlockY(), row);
    } else {
      ShiftBlocks<false>(args, run.cell + i, BlockY(), row);
    }
  }
}

}  // namespace kvcache::cuda
