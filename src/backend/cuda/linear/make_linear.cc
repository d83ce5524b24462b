// Packs weights on the way to the device: the threads of the device's pool write panels where the link takes them, so
// that the host's memory stays bounded.
#include <algorithm>
#include <cstring>

#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/linear/refused_scales.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "backend/cuda/linear/linear_weight.h"

namespace kvcache::cuda {
namespace {

// The units of `count` × `unit_bytes` bytes.
LinkUnits UnitsOf(std::int64_t count, std::int64_t unit_bytes) {
  return {static_cast<std::size_t>(count * unit_bytes), static_cast<std::size_t>(unit_bytes)};
}

Result<std::unique_ptr<LinearWeight>> MakeBlocks(Device& device, const TensorView& w) {
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
  const FillUnit pack = [&](std::size_t unit, std::span<std::byte> to) {
    const auto panel = static_cast<std::int64_t>(unit);
    const std::int64_t row = panel % panels * block::kPanelRows;
    const std::int64_t first = panel / panels * outputs + row;
    const std::int64_t rows = std::min(block::kPanelRows, outputs - row);
    scales.CheckRows(first, first + rows);
    block::PackPanel(w.dtype, w.data + first * row_bytes, rows, inputs, to.data());
  };
  KVCACHE_RETURN_IF_ERROR(device.CopyInUnits(UnitsOf(all, panel_bytes), pack, memory->data()));
  KVCACHE_RETURN_IF_ERROR(scales.status());
  return std::unique_ptr<LinearWeight>(
      std::make_unique<linear::CudaWeight>(w, panels * panel_bytes, std::move(memory)));
}

Result<std::unique_ptr<LinearWeight>> MakeRows(Device& device, const TensorView& w) {
  const auto row_bytes = static_cast<std::size_t>(BytesOf(w.dtype, w.dims[0]));
  const std::int64_t stride = BytesOf(w.dtype, linear::RowStride(w.dims[0]));
  const std::int64_t rows = w.dims[1] * w.dims[2];
  // Several rows a unit, so that short rows are no short tasks.
  const auto some = std::clamp<std::int64_t>(static_cast<std::int64_t>(kCopyUnitBytes) / stride, 1,
                                             std::max<std::int64_t>(rows, 1));
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> memory,
                           device.Allocate(static_cast<std::size_t>(rows * stride)));
  const FillUnit fill = [&](std::size_t unit, std::span<std::byte> to) {
    const std::byte* from = w.data + unit * static_cast<std::size_t>(some) * row_bytes;
    const auto step = static_cast<std::size_t>(stride);
    for (; !to.empty(); to = to.subspan(step), from += row_bytes) {
      std::memcpy(to.data(), from, row_bytes);
      std::memset(to.data() + row_bytes, 0, step - row_bytes);
    }
  };
  LinkUnits units = UnitsOf(rows, stride);
  units.unit_bytes = static_cast<std::size_t>(some * stride);
  KVCACHE_RETURN_IF_ERROR(device.CopyInUnits(units, fill, memory->data()));
  return std::unique_ptr<LinearWeight>(
      std::make_unique<linear::CudaWeight>(w, w.dims[1] * stride, std::move(memory)));
}

}  // namespace

Result<std::unique_ptr<LinearWeight>> MakeLinear(Device& device, const TensorView& w) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckLinear(w));
  if (cpu::block::IsBlockType(w.dtype)) return MakeBlocks(device, w);
  return MakeRows(device, w);
}

}  // namespace kvcache::cuda
