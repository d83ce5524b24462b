// Packs weights and copies them to the device, piece by piece, so that the host's memory stays bounded.
#include <algorithm>
#include <cstring>

#include "backend/cpu/linear/linear.h"
#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/linear/refused_scales.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "backend/cuda/linear/linear_weight.h"
#include "platform/aligned_buffer.h"

namespace kvcache::cuda {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

// Copies `count` units of `unit_bytes` to the device; fill(unit, to) makes one of them, on any thread.
template <class Fill>
Status CopyPieces(Device& device, ThreadPool& pool, std::int64_t count, std::int64_t unit_bytes,
                  std::byte* to, const Fill& fill) {
  const std::int64_t units = std::clamp<std::int64_t>(kPieceBytes / unit_bytes, 1, count);
  KVCACHE_ASSIGN_OR_RETURN(AlignedBuffer piece,
                           AlignedBuffer::Make(static_cast<std::size_t>(units * unit_bytes)));
  for (std::int64_t first = 0; first < count; first += units) {
    const std::int64_t some = std::min(units, count - first);
    pool.ParallelFor(some,
                     [&](std::int64_t i, int) { fill(first + i, piece.data() + i * unit_bytes); });
    const std::span<const std::byte> bytes(piece.data(),
                                           static_cast<std::size_t>(some * unit_bytes));
    KVCACHE_RETURN_IF_ERROR(device.CopyIn(bytes, to + first * unit_bytes));
  }
  return Status::Ok();
}

Result<std::unique_ptr<LinearWeight>> MakeBlocks(Device& device, ThreadPool& pool,
                                                 const TensorView& w) {
  namespace block = cpu::block;
  const std::int64_t inputs = w.dims[0];
  const std::int64_t outputs = w.dims[1];
  const std::int64_t panels = block::Panels(outputs);
  const std::int64_t panel_bytes = block::PanelBytes(w.dtype, inputs);
  const std::int64_t row_bytes = BytesOf(w.dtype, inputs);
  const std::int64_t all = panels * w.dims[2];
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> memory,
                           device.Allocate(static_cast<std::size_t>(all * panel_bytes)));
  cpu::RefusedScales scales(w);
  KVCACHE_RETURN_IF_ERROR(CopyPieces(
      device, pool, all, panel_bytes, memory->data(), [&](std::int64_t panel, std::byte* to) {
        const std::int64_t row = panel % panels * block::kPanelRows;
        const std::int64_t first = panel / panels * outputs + row;
        const std::int64_t rows = std::min(block::kPanelRows, outputs - row);
        scales.CheckRows(first, first + rows);
        block::PackPanel(w.dtype, w.data + first * row_bytes, rows, inputs, to);
      }));
  KVCACHE_RETURN_IF_ERROR(scales.status());
  return std::unique_ptr<LinearWeight>(
      std::make_unique<linear::CudaWeight>(w, panels * panel_bytes, std::move(memory)));
}

Result<std::unique_ptr<LinearWeight>> MakeRows(Device& device, ThreadPool& pool,
                                               const TensorView& w) {
  const std::int64_t row_bytes = BytesOf(w.dtype, w.dims[0]);
  const std::int64_t stride = BytesOf(w.dtype, linear::RowStride(w.dims[0]));
  const std::int64_t rows = w.dims[1] * w.dims[2];
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> memory,
                           device.Allocate(static_cast<std::size_t>(rows * stride)));
  KVCACHE_RETURN_IF_ERROR(
      CopyPieces(device, pool, rows, stride, memory->data(), [&](std::int64_t row, std::byte* to) {
        std::memcpy(to, w.data + row * row_bytes, static_cast<std::size_t>(row_bytes));
        std::memset(to + row_bytes, 0, static_cast<std::size_t>(stride - row_bytes));
      }));
  return std::unique_ptr<LinearWeight>(
      std::make_unique<linear::CudaWeight>(w, w.dims[1] * stride, std::move(memory)));
}

}  // namespace

Result<std::unique_ptr<LinearWeight>> MakeLinear(Device& device, ThreadPool& pool,
                                                 const TensorView& w) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckLinear(w));
  if (cpu::block::IsBlockType(w.dtype)) return MakeBlocks(device, pool, w);
  return MakeRows(device, pool, w);
}

}  // namespace kvcache::cuda
