#include "backend/cuda/linear/slot_products.h"

#include <algorithm>
#include <array>
#include <string>

#include "backend/cpu/common/block_layout.h"
#include "backend/cuda/linear/input_memory.h"
#include "backend/cuda/linear/kernel_table.h"
#include "backend/cuda/linear/linear_weight.h"
#include "backend/cuda/linear/slot_tasks_kernels.h"

namespace kvcache::cuda {
namespace {

using linear::CudaWeight;
using linear::kPers;
using linear::LinearTask;
using linear::Per;
using linear::QuantizeTask;
using linear::SlotInput;
using linear::SlotProduct;
using linear::SlotTasksArgs;

constexpr Kernel kSlotTasks{"linear_slot_tasks", linear::kSlotTaskThreads};

std::string TextOf(const TensorView& view) {
  return "[" + std::to_string(view.dims[0]) + ", " + std::to_string(view.dims[1]) + "]";
}

bool IsDenseColumns(const TensorView& view) {
  return view.dtype == DType::kF32 && view.stride_bytes[0] == 4 && view.dims[2] == 1 &&
         view.dims[3] == 1 && (view.dims[1] == 1 || view.stride_bytes[1] == view.dims[0] * 4);
}

Status CheckX(const SlotGroups& groups, const TensorView& x) {
  const bool is_one = x.dims[1] == 1 && groups.tokens == 1;
  if (!IsDenseColumns(x) || (x.dims[1] != groups.slots && !is_one)) {
    return {StatusCode::kInvalidArgument,
            "expert products: x is " + TextOf(x) +
                "; must be dense f32 with a column for each of " + std::to_string(groups.slots) +
                " slots, or one column if there is one token, of " + std::to_string(groups.tokens)};
  }
  return Status::Ok();
}

Status CheckOutput(const SlotGroups& groups, const TensorView& x, const ExpertOutput& output) {
  const auto* const weight = dynamic_cast<const CudaWeight*>(output.weight);
  if (weight == nullptr) {
    return {StatusCode::kInvalidArgument, "expert products: the weights are not the device's"};
  }
  if (cpu::block::IsBlockType(weight->dtype()) &&
      reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) {
    return {
        StatusCode::kInvalidArgument,
        "expert products: x " + TextOf(x) + " for block-quantised weights is not 16-byte aligned"};
  }
  if (weight->inputs() == x.dims[0] && weight->outputs() == output.y.dims[0] &&
      IsDenseColumns(output.y) && output.y.dims[1] == groups.slots && output.first >= 0 &&
      output.step >= 0 && output.first + (groups.experts - 1) * output.step < weight->matrices()) {
    return Status::Ok();
  }
  return {StatusCode::kInvalidArgument,
          "expert products: x is " + TextOf(x) + ", y is " + TextOf(output.y) +
              ", and the weights are " + std::to_string(weight->matrices()) + " matrices of [" +
              std::to_string(weight->inputs()) + ", " + std::to_string(weight->outputs()) +
              "], of which " + std::to_string(groups.experts) + " experts have each " +
              std::to_string(output.step) + ", from " + std::to_string(output.first) +
              " on; must be of one shape, y dense f32 with " + std::to_string(groups.slots) +
              " columns, and a matrix for each expert"};
}

// Tiles of `columns` columns, at most, if no tile has columns of two experts.
std::int64_t MostTiles(const SlotGroups& groups, std::int64_t columns) {
  return std::min(groups.slots, groups.slots / columns + std::min(groups.experts, groups.slots));
}

// What stands for each expert's product in the choice of kernels: as many columns as the experts have on average, and
// its part of the processors.
linear::ProductSize TypicalSize(const SlotGroups& groups, std::int64_t outputs, int processors) {
  const std::int64_t busy = std::min(groups.experts, groups.slots);
  constexpr std::int64_t kFew = linear::kTileColumns;
  // Each expert has at most one slot of a token.
  const std::int64_t columns = groups.tokens == 1 ? 1 : std::max(kFew, groups.slots / busy);
  return {outputs, columns, static_cast<int>(processors / busy)};
}

// A call: inputs that are quantised once, products, and the launches of both.
class SlotCall {
 public:
  SlotCall(Device& device, CallMemory& memory, const SlotGroups& groups, const TensorView& x)
      : device_(device), memory_(memory), groups_(groups), x_(x) {
    args_.begin = groups.begin;
    args_.experts = static_cast<std::int32_t>(groups.experts);
    args_.one_column = x.dims[1] == 1;
  }

  Status Add(const ExpertOutput& output) {
    const auto& weight = static_cast<const CudaWeight&>(*output.weight);
    SlotProduct product{};
    if (cpu::block::IsBlockType(weight.dtype())) {
      KVCACHE_ASSIGN_OR_RETURN(const SlotInput* const input,
                               InputOf(linear::PerOf(weight.dtype())));
      product.x = input->to;
      product.words = input->words;
    }
    const linear::ProductKernel kernel = linear::ProductKernelOf(
        weight.dtype(), TypicalSize(groups_, weight.outputs(), device_.info().processors));
    KVCACHE_ASSIGN_OR_RETURN(product.tasks, TakeTasks<LinearTask>());
    product.weights = weight.matrix(output.first);
    product.expert_bytes = weight.matrix(output.step) - weight.matrix(0);
    product.columns_x = x_.as<const float>();
    product.y = output.y.as<float>();
    product.inputs = static_cast<std::int32_t>(weight.inputs());
    product.outputs = static_cast<std::int32_t>(weight.outputs());
    product.tile_columns = kernel.columns;
    product.tile_blocks =
        static_cast<std::int32_t>((weight.outputs() + kernel.rows - 1) / kernel.rows);
    kernels_[products_] = kernel;
    args_.products[products_++] = product;
    return Status::Ok();
  }

  Status Run() {
    const auto lists = args_.input_count + static_cast<std::int64_t>(products_);
    KVCACHE_RETURN_IF_ERROR(
        Launch(device_, kSlotTasks, {.x = lists}, args_, sizeof(linear::SlotTasksMemory)));
    KVCACHE_RETURN_IF_ERROR(Quantize());
    for (std::size_t i = 0; i < products_; ++i) {
      const SlotProduct& product = args_.products[i];
      linear::LinearArgs args{};
      args.tasks.all = product.tasks;
      args.tasks.count = args_.experts + 1;
      KVCACHE_RETURN_IF_ERROR(
          Launch(device_, *kernels_[i].kernel,
                 {.x = product.tile_blocks * MostTiles(groups_, product.tile_columns)}, args,
                 kernels_[i].shared_bytes));
    }
    return Status::Ok();
  }

 private:
  template <class Task>
  Result<Task*> TakeTasks() {
    const auto count = static_cast<std::size_t>(groups_.experts) + 1;
    KVCACHE_ASSIGN_OR_RETURN(std::byte* const at, memory_.Take(count * sizeof(Task)));
    return reinterpret_cast<Task*>(at);
  }

  // Returns x quantised so, in memory that the call's kernels fill.
  Result<const SlotInput*> InputOf(Per per) {
    SlotInput& input = inputs_[static_cast<std::size_t>(per)];
    if (input.to.values != nullptr) return &input;
    input.words = linear::TileWordsOf(x_.dims[0], per);
    const std::int64_t tiles = args_.one_column ? 1 : MostTiles(groups_, linear::kTileColumns);
    KVCACHE_ASSIGN_OR_RETURN(input.to, linear::TakeInput(memory_, input.words, tiles));
    input.x = x_.as<const float>();
    input.inputs = static_cast<std::int32_t>(x_.dims[0]);
    input.tile_blocks = static_cast<std::int32_t>(linear::QuantizeBlocksOf(x_.dims[0], 1));
    if (args_.one_column) return &input;
    KVCACHE_ASSIGN_OR_RETURN(input.tasks, TakeTasks<QuantizeTask>());
    args_.inputs[args_.input_count++] = input;
    return &input;
  }

  Status Quantize() {
    for (std::size_t i = 0; i < kPers; ++i) {
      const SlotInput& input = inputs_[i];
      if (input.to.values == nullptr) continue;
      linear::QuantizeArgs args{};
      args.tasks.count = args_.experts + 1;
      args.tasks.all = input.tasks;
      std::int64_t tiles = MostTiles(groups_, linear::kTileColumns);
      if (args_.one_column) {
        args.tasks.count = 1;
        args.tasks.here[0] = {input.x, input.to, input.inputs, 1, 0};
        tiles = 1;
      }
      KVCACHE_RETURN_IF_ERROR(Launch(device_, linear::QuantizeKernelOf(static_cast<Per>(i)),
                                     {.x = input.tile_blocks * tiles}, args));
    }
    return Status::Ok();
  }

  Device& device_;
  CallMemory& memory_;
  const SlotGroups& groups_;
  const TensorView& x_;
  SlotTasksArgs args_{};
  std::size_t products_ = 0;
  std::array<SlotInput, kPers> inputs_{};
  std::array<linear::ProductKernel, linear::kMostSlotProducts> kernels_{};
};

}  // namespace

Status LinearSlots(Device& device, CallMemory& memory, const SlotGroups& groups,
                   const TensorView& x, std::span<const ExpertOutput> outputs) {
  if (outputs.size() > linear::kMostSlotProducts) {
    return {StatusCode::kUnsupported, "expert products: " + std::to_string(outputs.size()) +
                                          " outputs; must be at most " +
                                          std::to_string(linear::kMostSlotProducts)};
  }
  KVCACHE_RETURN_IF_ERROR(CheckX(groups, x));
  SlotCall call(device, memory, groups, x);
  for (const ExpertOutput& output : outputs) {
    KVCACHE_RETURN_IF_ERROR(CheckOutput(groups, x, output));
    KVCACHE_RETURN_IF_ERROR(call.Add(output));
  }
  return outputs.empty() || groups.slots == 0 ? Status::Ok() : call.Run();
}

}  // namespace kvcache::cuda
