// A block's task of a launch.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

template <class Task>
KVCACHE_DEVICE Task TaskOfBlock(const TaskList<Task>& list) {
  if (list.all == nullptr) {
    int at = 0;
    KVCACHE_UNROLL
    for (int i = 1; i < TaskList<Task>::kHere; ++i) {
      if (i < list.count && BlockX() >= list.here[i].first_block) at = i;
    }
    return list.here[at];
  }
  int begin = 0;
  int end = list.count;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (BlockX() >= list.all[middle].first_block ? begin : end) = middle;
  }
  return list.all[begin];
}

}  // namespace kvcache::cuda::linear
