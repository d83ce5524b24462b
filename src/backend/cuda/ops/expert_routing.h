// Experts whose choice stays on the device (kvcache/expert_routing.h): no call but Slots waits for the device.
//
// Thread safety: that of the backend. Ownership: the device and the memory must outlive the object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/routing_kernels.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

class CudaRouting final : public ExpertRouting {
 public:
  // Allocates memory for these sizes on the device and on the host.
  static Result<std::unique_ptr<ExpertRouting>> Make(Device& device, CallMemory& memory,
                                                     const RoutingSizes& sizes);

  Status Route(const TensorView& logits, const RouterOptions& options,
               std::span<const float> factors) override;
  Status GatherTokens(const TensorView& x, const TensorView& columns) override;
  Status GatherExperts(const TensorView& table, const TensorView& columns) override;
  Status WeighInputs(const TensorView& columns) override;
  Status ScaleByExpert(const TensorView& columns, std::span<const float> factors) override;
  Status Linear(const TensorView& x, std::span<const ExpertOutput> outputs) override;
  Status Combine(const TensorView& columns, const TensorView& out) override;
  Result<ExpertSlots> Slots() override;

 private:
  CudaRouting(Device& device, CallMemory& memory, const RoutingSizes& sizes)
      : device_(device), memory_(memory), sizes_(sizes) {}

  Status Allocate();
  // Checks that a tensor is by slot.
  Status CheckColumns(const char* what, const TensorView& columns) const;
  Status Gather(const TensorView& x, const std::int32_t* from, const TensorView& columns);

  Device& device_;
  CallMemory& memory_;
  RoutingSizes sizes_;
  std::unique_ptr<Buffer> buffer_;
  DeviceChoices choices_;
  SlotTable table_{};
  std::int64_t slots_ = 0;  // of the batch
  std::int64_t tokens_ = 0;
  bool weighed_ = false;  // WeighInputs has multiplied by the weights
  std::vector<std::int32_t> tokens_of_slots_;
  std::vector<std::int32_t> experts_of_slots_;
};

}  // namespace kvcache::cuda
