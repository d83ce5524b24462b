#include "backend/cpu/linear/linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/linear/linear_call.h"
#include "backend/cpu/linear/linear_check.h"
#include "backend/cpu/linear/linear_weight.h"
#include "backend/cpu/linear/refused_scales.h"
#include "backend/cpu/linear/weight_memory.h"

namespace kvcache::cpu {
namespace {

std::string Size(std::int64_t a, std::int64_t b) {
  return "[" + std::to_string(a) + ", " + std::to_string(b) + "]";
}

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, "linear: " + std::move(message));
}

// One matrix, or a stack of them.
bool IsDenseStack(const TensorView& view) {
  const std::int64_t row_bytes = BytesOf(view.dtype, view.dims[0]);
  return view.dims[3] == 1 && view.stride_bytes[0] == InfoOf(view.dtype).block_bytes &&
         (view.dims[1] == 1 || view.stride_bytes[1] == row_bytes) &&
         (view.dims[2] == 1 || view.stride_bytes[2] == row_bytes * view.dims[1]);
}

Status CheckWeight(const TensorView& w) {
  const std::string what = std::string(InfoOf(w.dtype).name) + " " + Size(w.dims[0], w.dims[1]);
  if (w.dims[0] < 1 || w.dims[1] < 1 || w.dims[2] < 1 || !IsDenseStack(w)) {
    return Invalid("weight " + what + " is not a dense matrix or a stack of them");
  }
  if (w.dims[0] % InfoOf(w.dtype).block_size != 0) {
    return Invalid("weight " + what + ": inputs are not a multiple of its block of " +
                   std::to_string(InfoOf(w.dtype).block_size));
  }
  return Status::Ok();
}

Result<std::unique_ptr<LinearWeight>> PackBlocks(ThreadPool& pool, WeightMemory& memory,
                                                 const TensorView& w) {
  const std::int64_t inputs = w.dims[0];
  const std::int64_t outputs = w.dims[1];
  const std::int64_t panels = block::Panels(outputs);
  const std::int64_t all_panels = panels * w.dims[2];
  const std::int64_t panel_bytes = block::PanelBytes(w.dtype, inputs);
  KVCACHE_ASSIGN_OR_RETURN(WeightPiece piece,
                           memory.Make(static_cast<std::size_t>(all_panels * panel_bytes)));
  const std::int64_t row_bytes = BytesOf(w.dtype, inputs);
  RefusedScales scales(w);
  pool.ParallelFor(all_panels, [&](std::int64_t panel, int) {
    const std::int64_t row = panel % panels * block::kPanelRows;
    const std::int64_t first = panel / panels * outputs + row;
    const std::int64_t rows = std::min(block::kPanelRows, outputs - row);
    scales.CheckRows(first, first + rows);
    block::PackPanel(w.dtype, w.data + first * row_bytes, rows, inputs,
                     piece.data() + panel * panel_bytes);
  });
  KVCACHE_RETURN_IF_ERROR(scales.status());
  return std::unique_ptr<LinearWeight>(std::make_unique<BlockWeight>(w, std::move(piece)));
}

bool IsCpuWeight(const LinearWeight* weight) {
  return dynamic_cast<const CpuWeight*>(weight) != nullptr;
}

}  // namespace

Status CheckLinear(const TensorView& w) {
  const bool plain = w.dtype == DType::kF32 || w.dtype == DType::kF16 || w.dtype == DType::kBF16;
  if (!plain && !block::IsBlockType(w.dtype)) {
    return {StatusCode::kUnsupported,
            "linear: no kernels for " + std::string(InfoOf(w.dtype).name) + " weights"};
  }
  return CheckWeight(w);
}

Result<std::unique_ptr<LinearWeight>> MakeLinear(ThreadPool& pool, WeightMemory& memory,
                                                 const TensorView& w) {
  KVCACHE_RETURN_IF_ERROR(CheckLinear(w));
  if (block::IsBlockType(w.dtype)) return PackBlocks(pool, memory, w);
  return std::unique_ptr<LinearWeight>(std::make_unique<FloatWeight>(w));
}

Status LinearGroups(ThreadPool& pool, Workspace& workspace, std::span<const LinearGroup> groups) {
  KVCACHE_RETURN_IF_ERROR(CheckLinearGroups(groups, IsCpuWeight));
  if (groups.empty()) return Status::Ok();
  LinearCall call(pool, groups);
  KVCACHE_RETURN_IF_ERROR(call.Reserve(workspace));
  call.Prepare();
  call.Run();
  return Status::Ok();
}

}  // namespace kvcache::cpu
