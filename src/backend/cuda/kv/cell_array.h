// Where the parts of cells lie: one formula for every type and layout, so that one kernel serves all.
//
// A *unit* is the part of a cell that lies in one piece: a value of f32, f16 or bf16; four codes of a
// key, one code byte of a value, or a scale, for block types.
//
// Thread safety: values. Addresses are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::cuda {

// Unit u of a cell's head: strides in bytes.
struct CellArray {
  std::byte* data;
  std::int64_t head;
  std::int64_t tile;      // from a cell to the one 16 further on
  std::int64_t quad;      // from a cell to the one 4 further on, within a tile
  std::int64_t cell;      // from a cell to the next, within four
  std::int64_t far_unit;  // from a unit to the one 16 further on
  std::int64_t unit;      // from a unit to the next, within 16
};

// A list that a kernel reads: short ones are part of the arguments, longer ones lie in the call's memory.
template <class T, int kSize>
struct ArgumentList {
  static constexpr int kNear = kSize;
  const T* far;  // null: the list is in `near`
  T near[kSize];
};

}  // namespace kvcache::cuda
