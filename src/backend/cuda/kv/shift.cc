#include "backend/cuda/kv/shift.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/kv/kv_check.h"
#include "backend/cpu/kv/kv_kernels.h"
#include "backend/cuda/kv/argument_list.h"
#include "backend/cuda/kv/cell_layout.h"
#include "backend/cuda/kv/hadamard.h"
#include "backend/cuda/kv/shift_kernels.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kShiftFloatsKernel{"kv_shift_floats", ShiftArgs::kThreads};
constexpr Kernel kShiftBlocksKernel{"kv_shift_blocks", ShiftArgs::kThreads};

// Cuts runs where tiles end.
std::vector<CellRun> TileRuns(std::span<const CellRun> cells) {
  std::vector<CellRun> runs;
  for (const CellRun& run : cells) {
    for (std::int32_t i = 0; i < run.length;) {
      const std::int32_t cell = run.cell + i;
      const std::int32_t count = std::min(kCellTile - cell % kCellTile, run.length - i);
      runs.push_back({cell, count});
      i += count;
    }
  }
  return runs;
}

}  // namespace

Status ShiftKeys(Device& device, CallMemory& memory, const LayerKv& layer,
                 std::span<const CellRun> cells, Position offset, const RopeParams& rope) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckShift(layer, cells, rope));
  const std::size_t pairs = rope.inv_freq.size();
  const bool blocks = cpu::IsKvBlockType(layer.k_type);
  // A key of a block type would be rounded again without any change.
  if (pairs == 0 || (blocks && offset == 0)) return Status::Ok();
  std::vector<float> angles(2 * pairs);
  cpu::ShiftAngles(offset, rope.inv_freq, angles.data(), angles.data() + pairs);
  KVCACHE_ASSIGN_OR_RETURN(const float* const cosines,
                           memory.Upload(std::span<const float>(angles)));
  const CellParts parts = KeyParts(layer);
  const bool halves = rope.pairing == RopeParams::Pairing::kHalves;
  ShiftArgs args{.units = parts.units,
                 .scales = parts.scales,
                 .cosines = cosines,
                 .sines = cosines + pairs,
                 .dim = layer.shape.k_dim,
                 .first = rope.first,
                 .pairs = static_cast<std::int32_t>(pairs),
                 .near = halves ? 1 : 2,
                 .second = halves ? static_cast<std::int32_t>(pairs) : 1,
                 .hadamard = 0,
                 .latent = cpu::HoldsLatents(layer) ? layer.shape.v_dim : 0,
                 .hadamard_factor = 0.0f,
                 .type = layer.k_type,
                 .runs = {}};
  const std::vector<CellRun> runs = TileRuns(cells);
  KVCACHE_ASSIGN_OR_RETURN(args.runs,
                           (MakeList<decltype(args.runs)>(memory, std::span<const CellRun>(runs))));
  const Grid grid{.x = static_cast<std::int64_t>(runs.size()), .y = layer.shape.kv_heads};
  if (!blocks) return Launch(device, kShiftFloatsKernel, grid, args);
  const std::int64_t size = cpu::HadamardSize(layer.shape.k_dim - args.latent);
  args.hadamard = static_cast<std::int32_t>(size);
  args.hadamard_factor = HadamardFactor(size);
  KVCACHE_ASSIGN_OR_RETURN(const std::size_t shared,
                           HadamardRowsBytes(device, layer.shape.k_dim, ShiftArgs::kThreads / 32));
  return Launch(device, kShiftBlocksKernel, grid, args, shared);
}

}  // namespace kvcache::cuda
