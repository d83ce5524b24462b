#include "backend/cuda/linear/linear.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "backend/cpu/linear/linear_check.h"
#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/input_memory.h"
#include "backend/cuda/linear/kernel_table.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "backend/cuda/linear/linear_weight.h"

namespace kvcache::cuda {
namespace {

using linear::CudaWeight;
using linear::kPers;
using linear::LinearTask;
using linear::Per;
using linear::QuantizedInput;
using linear::QuantizeTask;

bool IsCudaWeight(const LinearWeight* weight) {
  return dynamic_cast<const CudaWeight*>(weight) != nullptr;
}

// The tasks of one launch.
template <class Task>
class Tasks {
 public:
  // Adds a task of `blocks` blocks.
  void Add(Task task, std::int64_t blocks) {
    task.first_block = static_cast<std::int32_t>(blocks_);
    blocks_ += blocks;
    all_.push_back(task);
  }

  // Starts them, if there are any. `Args` has a list of tasks and nothing else.
  template <class Args>
  Status Launch(Device& device, CallMemory& memory, const Kernel& kernel,
                std::size_t shared_bytes) const {
    if (all_.empty()) return Status::Ok();
    Args args{};
    args.tasks.count = static_cast<std::int32_t>(all_.size());
    if (args.tasks.count <= linear::TaskList<Task>::kHere) {
      std::ranges::copy(all_, args.tasks.here);
    } else {
      KVCACHE_ASSIGN_OR_RETURN(args.tasks.all, memory.Upload(std::span<const Task>(all_)));
    }
    return cuda::Launch(device, kernel, {.x = blocks_}, args, shared_bytes);
  }

 private:
  std::vector<Task> all_;
  std::int64_t blocks_ = 0;
};

struct ProductLaunch {
  linear::ProductKernel kernel;
  Tasks<LinearTask> tasks;
};

// A call: the quantised inputs of its groups, and its products by kernel.
class Call {
 public:
  Call(Device& device, CallMemory& memory) : device_(device), memory_(memory) {}

  Status Add(const LinearGroup& group) {
    std::array<QuantizedInput, kPers> quantized{};
    for (const LinearOutput& output : group.outputs) {
      const auto& weight = static_cast<const CudaWeight&>(*output.weight);
      const DType type = weight.dtype();
      LinearTask task{.weights = weight.matrix(output.matrix),
                      .x = {},
                      .columns_x = reinterpret_cast<const float*>(group.x.data),
                      .y = reinterpret_cast<float*>(output.y.data),
                      .inputs = static_cast<std::int32_t>(weight.inputs()),
                      .outputs = static_cast<std::int32_t>(weight.outputs()),
                      .columns = static_cast<std::int32_t>(group.x.dims[1]),
                      .first_block = 0};
      if (cpu::block::IsBlockType(type)) {
        const Per per = linear::PerOf(type);
        QuantizedInput& x = quantized[static_cast<std::size_t>(per)];
        if (x.values == nullptr) {
          KVCACHE_ASSIGN_OR_RETURN(x, Quantize(group.x, per));
        }
        task.x = x;
      }
      AddProduct(type, task);
    }
    return Status::Ok();
  }

  Status Run() {
    for (std::size_t i = 0; i < kPers; ++i) {
      KVCACHE_RETURN_IF_ERROR(quantizations_[i].Launch<linear::QuantizeArgs>(
          device_, memory_, linear::QuantizeKernelOf(static_cast<Per>(i)), 0));
    }
    for (const ProductLaunch& launch : products_) {
      KVCACHE_RETURN_IF_ERROR(launch.tasks.Launch<linear::LinearArgs>(
          device_, memory_, *launch.kernel.kernel, launch.kernel.shared_bytes));
    }
    return Status::Ok();
  }

 private:
  // Returns memory for the quantised x, and notes the work.
  Result<QuantizedInput> Quantize(const TensorView& x, Per per) {
    if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) {
      return Status(StatusCode::kInvalidArgument,
                    "linear: x [" + std::to_string(x.dims[0]) + ", " + std::to_string(x.dims[1]) +
                        "] for block-quantised weights is not 16-byte aligned");
    }
    const std::int64_t tiles = linear::TilesOf(x.dims[1]);
    KVCACHE_ASSIGN_OR_RETURN(
        const QuantizedInput to,
        linear::TakeInput(memory_, linear::TileWordsOf(x.dims[0], per), tiles));
    quantizations_[static_cast<std::size_t>(per)].Add(
        QuantizeTask{.x = reinterpret_cast<const float*>(x.data),
                     .to = to,
                     .inputs = static_cast<std::int32_t>(x.dims[0]),
                     .columns = static_cast<std::int32_t>(x.dims[1]),
                     .first_block = 0},
        linear::QuantizeBlocksOf(x.dims[0], tiles));
    return to;
  }

  void AddProduct(DType type, const LinearTask& task) {
    const linear::ProductSize size{task.outputs, task.columns, device_.info().processors};
    const linear::ProductKernel kernel = linear::ProductKernelOf(type, size);
    auto launch = std::ranges::find_if(products_, [&](const ProductLaunch& other) {
      return other.kernel.kernel == kernel.kernel;
    });
    if (launch == products_.end()) {
      products_.push_back({kernel, {}});
      launch = products_.end() - 1;
    }
    std::size_t& shared = launch->kernel.shared_bytes;
    shared = std::max(shared, kernel.shared_bytes);
    launch->tasks.Add(task, linear::BlocksOf(kernel, size));
  }

  Device& device_;
  CallMemory& memory_;
  std::array<Tasks<QuantizeTask>, kPers> quantizations_;
  std::vector<ProductLaunch> products_;
};

}  // namespace

Status LinearGroups(Device& device, CallMemory& memory, std::span<const LinearGroup> groups) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckLinearGroups(groups, IsCudaWeight));
  Call call(device, memory);
  for (const LinearGroup& group : groups) {
    if (group.x.dims[1] == 0) continue;
    KVCACHE_RETURN_IF_ERROR(call.Add(group));
  }
  return call.Run();
}

}  // namespace kvcache::cuda
