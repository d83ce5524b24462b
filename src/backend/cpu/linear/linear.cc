#include "backend/cpu/linear/linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/linear/linear_call.h"
#include "backend/cpu/linear/linear_weight.h"
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

bool IsDenseMatrix(const TensorView& view) {
  return view.dims[2] == 1 && IsDenseStack(view);
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
  pool.ParallelFor(all_panels, [&](std::int64_t panel, int) {
    const std::int64_t row = panel % panels * block::kPanelRows;
    const std::int64_t first = panel / panels * outputs + row;
    block::PackPanel(w.dtype, w.data + first * row_bytes,
                     std::min(block::kPanelRows, outputs - row), inputs,
                     piece.data() + panel * panel_bytes);
  });
  return std::unique_ptr<LinearWeight>(std::make_unique<BlockWeight>(w, std::move(piece)));
}

// ---- One call

Status CheckOutput(const TensorView& x, const LinearOutput& output) {
  const auto* const weight = dynamic_cast<const CpuWeight*>(output.weight);
  if (weight == nullptr) return Invalid("a weight was not made by this backend's MakeLinear");
  // Builds its text only for an error, since that allocates.
  const auto invalid = [&](const std::string& what) {
    return Invalid(what + ": weight " + Size(weight->inputs(), weight->outputs()) + ", x " +
                   Size(x.dims[0], x.dims[1]) + ", y " + Size(output.y.dims[0], output.y.dims[1]));
  };
  if (weight->inputs() != x.dims[0]) return invalid("inputs of weight and x differ");
  if (weight->outputs() != output.y.dims[0]) return invalid("outputs of weight and y differ");
  if (output.y.dims[1] != x.dims[1]) return invalid("batches of x and y differ");
  if (output.y.dtype != DType::kF32 || !IsDenseMatrix(output.y)) {
    return invalid("y is not a dense f32 matrix");
  }
  if (output.matrix < 0 || output.matrix >= weight->matrices()) {
    return invalid("matrix " + std::to_string(output.matrix) + " of a stack of " +
                   std::to_string(weight->matrices()));
  }
  return Status::Ok();
}

Status CheckGroup(const LinearGroup& group) {
  const TensorView& x = group.x;
  if (x.dtype != DType::kF32 || !IsDenseMatrix(x)) {
    return Invalid("x " + Size(x.dims[0], x.dims[1]) + " is not a dense f32 matrix");
  }
  for (const LinearOutput& output : group.outputs) {
    KVCACHE_RETURN_IF_ERROR(CheckOutput(x, output));
  }
  return Status::Ok();
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
  for (const LinearGroup& group : groups) {
    KVCACHE_RETURN_IF_ERROR(CheckGroup(group));
  }
  if (groups.empty()) return Status::Ok();
  LinearCall call(pool, groups);
  KVCACHE_RETURN_IF_ERROR(call.Reserve(workspace));
  call.Prepare();
  call.Run();
  return Status::Ok();
}

}  // namespace kvcache::cpu
