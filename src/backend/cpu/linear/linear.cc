#include "backend/cpu/linear/linear.h"

#include <string>
#include <utility>

#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/linear_call.h"
#include "backend/cpu/linear/linear_check.h"
#include "backend/cpu/linear/linear_weight.h"
#include "backend/cpu/linear/pack_weight.h"
#include "backend/cpu/linear/weight_memory.h"
#include "backend/cpu/linear/weight_nodes.h"
#include "platform/mapped_ranges.h"

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

Result<std::unique_ptr<LinearWeight>> MakeBlocks(ThreadPool& pool, WeightMemory& memory,
                                                 const TensorView& w,
                                                 const std::shared_ptr<PanelStore>& store) {
  const std::size_t bytes = PanelBytesOf(w);
  if (const std::byte* const kept = store == nullptr ? nullptr : store->Find(w, bytes)) {
    return std::unique_ptr<LinearWeight>(
        std::make_unique<BlockWeight>(w, bytes, std::make_unique<KeptPanels>(w, store, kept)));
  }
  KVCACHE_ASSIGN_OR_RETURN(WeightPiece piece, PackWeight(pool, memory, w));
  if (store != nullptr) store->Keep(w, piece.Share(), bytes);
  return std::unique_ptr<LinearWeight>(std::make_unique<BlockWeight>(w, std::move(piece)));
}

// Weights in place are in the pages of the model's file, but for those that were computed when it was loaded. The heap's
// pages have neighbors that are nobody's rows, and outlive the weight.
void PlaceRows(ThreadPool& pool, const FloatWeight& weight) {
  if (!weight.TakePlacing() || !IsInMappedFile(weight.bytes())) return;
  PlaceOnNodes(pool, weight, {weight.bytes(), BytesOf(weight.dtype(), weight.inputs())});
}

// Kept panels are checked before they are first multiplied.
Status CheckKept(ThreadPool& pool, const BlockWeight& weight, std::int64_t matrix) {
  KeptPanels* const kept = weight.ToCheck(matrix);
  if (kept == nullptr) return Status::Ok();
  if (pool.nodes() > 1 && weight.TakePlacing()) {
    const std::int64_t panel_bytes = block::PanelBytes(weight.dtype(), weight.inputs());
    PlaceOnNodes(pool, weight, {weight.kept_bytes(), panel_bytes / block::kPanelRows});
  }
  return kept->Check(pool, matrix);
}

Status PrepareWeights(ThreadPool& pool, std::span<const LinearGroup> groups) {
  for (const LinearGroup& group : groups) {
    for (const LinearOutput& output : group.outputs) {
      const LinearWeight& weight = *output.weight;
      if (block::IsBlockType(weight.dtype())) {
        KVCACHE_RETURN_IF_ERROR(
            CheckKept(pool, static_cast<const BlockWeight&>(weight), output.matrix));
      } else if (pool.nodes() > 1) {
        PlaceRows(pool, static_cast<const FloatWeight&>(weight));
      }
    }
  }
  return Status::Ok();
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
                                                 const TensorView& w,
                                                 const std::shared_ptr<PanelStore>& store) {
  KVCACHE_RETURN_IF_ERROR(CheckLinear(w));
  if (block::IsBlockType(w.dtype)) return MakeBlocks(pool, memory, w, store);
  return std::unique_ptr<LinearWeight>(std::make_unique<FloatWeight>(w));
}

Status LinearGroups(ThreadPool& pool, Workspace& workspace, std::span<const LinearGroup> groups) {
  KVCACHE_RETURN_IF_ERROR(CheckLinearGroups(groups, IsCpuWeight));
  if (groups.empty()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(PrepareWeights(pool, groups));
  LinearCall call(pool, groups);
  KVCACHE_RETURN_IF_ERROR(call.Reserve(workspace));
  call.Prepare();
  call.Run();
  return Status::Ok();
}

}  // namespace kvcache::cpu
