#include "backend/cuda/linear/input_memory.h"

#include "backend/cpu/common/block_layout.h"

namespace kvcache::cuda::linear {
namespace {

constexpr Kernel kQuantize[kPers] = {
    {"linear_quantize_16", kQuantizeThreads, KernelPart::kQuantize16},
    {"linear_quantize_32", kQuantizeThreads, KernelPart::kQuantize32},
    {"linear_quantize_256", kQuantizeThreads, KernelPart::kQuantize256}};

}  // namespace

Per PerOf(DType type) {
  switch (cpu::block::InputScalesOf(type)) {
    case cpu::block::InputScales::kPer16: return Per::k16;
    case cpu::block::InputScales::kPer32:
    case cpu::block::InputScales::kPer32ForBytes: return Per::k32;
    default: return Per::k256;
  }
}

const Kernel& QuantizeKernelOf(Per per) {
  return kQuantize[static_cast<std::size_t>(per)];
}

std::int64_t QuantizeBlocksOf(std::int64_t inputs, std::int64_t tiles) {
  constexpr std::int64_t kWarps = kQuantizeThreads / 32;
  const std::int64_t warps = cpu::block::Chunks(inputs) * tiles * kTileColumns;
  return (warps + kWarps - 1) / kWarps;
}

TileWords TileWordsOf(std::int64_t inputs, Per per) {
  // Floats of a pair of a tile: one for each of 8 columns and 32 (or 16) inputs.
  constexpr std::int64_t kPer32 = 16;
  constexpr std::int64_t kPer16 = 32;
  const std::int64_t pairs = PairsOf(inputs);
  return {.values = pairs * kPairWords,
          .scales = per == Per::k16   ? pairs * kPer16
                    : per == Per::k32 ? pairs * kPer32
                                      : cpu::block::Chunks(inputs) * kTileColumns,
          .sums = per == Per::k16 ? 0 : pairs * kPer32,
          .halves = per == Per::k256 ? pairs * kPer16 : 0};
}

Result<QuantizedInput> TakeInput(CallMemory& memory, const TileWords& words, std::int64_t tiles) {
  const std::int64_t all = (words.values + words.scales + words.sums + words.halves) * tiles;
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const at, memory.Take(static_cast<std::size_t>(all) * 4));
  QuantizedInput to{};
  to.values = reinterpret_cast<std::uint32_t*>(at);
  // All are multiples of 16 floats or of 8, so that each is 16-byte aligned.
  to.sums = reinterpret_cast<float*>(to.values + words.values * tiles);
  to.halves = to.sums + words.sums * tiles;
  to.scales = to.halves + words.halves * tiles;
  return to;
}

}  // namespace kvcache::cuda::linear
