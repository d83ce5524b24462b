// Rotary position embedding (RoPE) on a device.
//
// Exactness: the angles of docs/design/exactness.md, computed on the device in f64.
// Thread safety: one call at a time per device and tables. Errors: those of cpu::CheckRope and of the
// device.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

// A cache of the cosines and sines of a pass's positions, in memory of the device. All layers of a pass
// use the same table; models with two kinds of layers use two.
class RopeTables {
 public:
  struct Table {
    const float* cosines;  // [pairs, positions]
    const float* sines;    // [pairs, positions]
  };

  // Returns the table for these arguments, computed if necessary in place of the least recently used
  // one. Valid for kernels that are launched before the next call.
  Result<Table> Find(Device& device, CallMemory& memory, std::span<const Position> positions,
                     const RopeParams& rope);

 private:
  struct Entry {
    std::vector<Position> positions;
    std::vector<float> inv_freq;
    float magnitude = 0.0f;
    std::unique_ptr<Buffer> values;  // cosines, then sines
  };

  static bool Holds(const Entry& entry, std::span<const Position> positions,
                    const RopeParams& rope);
  static Table TableOf(const Entry& entry);
  static Status Fill(Device& device, CallMemory& memory, std::span<const Position> positions,
                     const RopeParams& rope, Entry& entry);

  std::array<Entry, 2> entries_;
  std::size_t last_used_ = 0;
};

// Implements Backend::Rope. Heads and tokens may have any stride.
Status Rope(Device& device, CallMemory& memory, RopeTables& tables, const TensorView& x,
            std::span<const Position> positions, const RopeParams& rope);

}  // namespace kvcache::cuda
