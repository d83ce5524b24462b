// Makes the lists of a kernel's arguments.
//
// Thread safety: none. Errors: those of CallMemory.
#pragma once

#include <algorithm>
#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/kv/cell_array.h"

namespace kvcache::cuda {

template <class List, class T>
Result<List> MakeList(CallMemory& memory, std::span<const T> items) {
  List list{};
  if (items.size() <= static_cast<std::size_t>(List::kNear)) {
    std::copy(items.begin(), items.end(), list.near);
    return list;
  }
  KVCACHE_ASSIGN_OR_RETURN(list.far, memory.Upload(items));
  return list;
}

}  // namespace kvcache::cuda
