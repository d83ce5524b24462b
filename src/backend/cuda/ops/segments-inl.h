// The segments of a strand, for kernels.
//
// Included by kernels only.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/recurrence_kernels.h"

namespace kvcache::cuda {

struct Strand {
  std::int32_t begin;
  std::int32_t end;
};

KVCACHE_DEVICE Strand StrandOf(const SegmentList& list, std::int32_t strand) {
  const std::int32_t* const strands = list.segments != nullptr ? list.strands : list.few_strands;
  return {strands[strand], strands[strand + 1]};
}

KVCACHE_DEVICE StateSegment SegmentOf(const SegmentList& list, std::int32_t segment) {
  return list.segments != nullptr ? list.segments[segment] : list.few_segments[segment];
}

}  // namespace kvcache::cuda
