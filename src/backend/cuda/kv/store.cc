#include "backend/cuda/kv/store.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/kv/kv_check.h"
#include "backend/cuda/kv/argument_list.h"
#include "backend/cuda/kv/cell_layout.h"
#include "backend/cuda/kv/hadamard.h"
#include "backend/cuda/kv/store_kernels.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kStoreKernel{"kv_store", StoreArgs::kThreads, KernelPart::kStore};

// Cuts runs where tiles end.
std::vector<StorePiece> StorePieces(std::span<const CellRun> cells) {
  std::vector<StorePiece> pieces;
  std::int32_t token = 0;
  for (const CellRun& run : cells) {
    for (std::int32_t i = 0; i < run.length;) {
      const std::int32_t cell = run.cell + i;
      const std::int32_t count = std::min(kCellTile - cell % kCellTile, run.length - i);
      pieces.push_back({.token = token + i, .cell = cell, .count = count});
      i += count;
    }
    token += run.length;
  }
  return pieces;
}

StoreSide MakeSide(const TensorView& rows, const CellParts& parts, DType type) {
  return {.rows = rows.data,
          .head_bytes = rows.stride_bytes[1],
          .token_bytes = rows.stride_bytes[2],
          .units = parts.units,
          .scales = parts.scales,
          .dim = static_cast<std::int32_t>(rows.dims[0]),
          .hadamard = 0,
          .hadamard_factor = 0.0f,
          .latent = 0,
          .latent_hadamard = 0,
          .latent_factor = 0.0f,
          .type = type};
}

}  // namespace

Status StoreKv(Device& device, CallMemory& memory, const LayerKv& layer, const TensorView& k,
               const TensorView& v, std::span<const CellRun> cells) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckStore(layer, k, v, cells));
  const std::vector<StorePiece> pieces = StorePieces(cells);
  StoreArgs args{};
  KVCACHE_ASSIGN_OR_RETURN(
      args.pieces, (MakeList<decltype(args.pieces)>(memory, std::span<const StorePiece>(pieces))));
  args.sides[0] = MakeSide(k, KeyParts(layer), layer.k_type);
  std::size_t shared = 0;
  if (cpu::IsKvBlockType(layer.k_type)) {
    StoreSide& side = args.sides[0];
    if (cpu::HoldsLatents(layer)) {
      const std::int64_t of_latent = cpu::LatentHadamardSize(layer.shape.v_dim);
      side.latent = layer.shape.v_dim;
      side.latent_hadamard = static_cast<std::int32_t>(of_latent);
      side.latent_factor = HadamardFactor(of_latent);
    }
    // A latent without other values has no second part, but is a key all the same.
    const std::int64_t size =
        std::max(cpu::HadamardSize(layer.shape.k_dim - side.latent), cpu::kKvBlock);
    side.hadamard = static_cast<std::int32_t>(size);
    side.hadamard_factor = HadamardFactor(size);
    KVCACHE_ASSIGN_OR_RETURN(
        shared, HadamardRowsBytes(device, layer.shape.k_dim, StoreArgs::kThreads / 32));
  }
  if (!layer.shape.v_in_k) args.sides[1] = MakeSide(v, ValueParts(layer), layer.v_type);
  const Grid grid{.x = static_cast<std::int64_t>(pieces.size()),
                  .y = layer.shape.kv_heads,
                  .z = layer.shape.v_in_k ? 1 : 2};
  return Launch(device, kStoreKernel, grid, args, shared);
}

}  // namespace kvcache::cuda
