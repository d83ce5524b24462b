// Products of experts' slots with the experts' matrices, where only the device knows how many slots an expert has
// (docs/design/cuda.md, "Experts on the device").
//
// Thread safety: one call at a time per device and memory. Errors: kInvalidArgument for shapes that do not match,
// with both sides; kOutOfMemory of the device.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

// The slots of a batch, sorted by expert.
struct SlotGroups {
  const std::int32_t* begin =
      nullptr;  // [experts + 1], the device's: the first slot of each expert
  std::int64_t experts = 0;
  std::int64_t slots = 0;
  std::int64_t tokens = 0;
};

// ExpertRouting::Linear, with the bits of LinearGroups. REQUIRES: at most four outputs; weights of this device. A
// token has an expert at most once.
Status LinearSlots(Device& device, CallMemory& memory, const SlotGroups& groups,
                   const TensorView& x, std::span<const ExpertOutput> outputs);

}  // namespace kvcache::cuda
