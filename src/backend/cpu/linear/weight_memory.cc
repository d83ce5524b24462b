#include "backend/cpu/linear/weight_memory.h"

#include <algorithm>
#include <utility>

namespace kvcache::cpu {
namespace {

// Smaller weights have memory of their own, whose ends sanitizers check.
constexpr std::size_t kMinPieceBytes = std::size_t{64} << 10;
// Free pages of a block take no memory until they are touched.
constexpr std::size_t kBlockBytes = std::size_t{64} << 20;

std::size_t RoundUp(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

Result<std::shared_ptr<AlignedBuffer>> MakeBlock(std::size_t size_bytes) {
  KVCACHE_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Make(size_bytes));
  return std::make_shared<AlignedBuffer>(std::move(buffer));
}

}  // namespace

Result<WeightPiece> WeightMemory::Make(std::size_t size_bytes) {
  std::shared_ptr<AlignedBuffer> block = block_.lock();
  const std::size_t free_bytes = block == nullptr ? 0 : block->size_bytes() - used_;
  if (size_bytes < kMinPieceBytes || size_bytes > kBlockBytes) {
    KVCACHE_ASSIGN_OR_RETURN(block, MakeBlock(size_bytes));
    return WeightPiece(std::move(block), 0, size_bytes);
  }
  if (size_bytes > free_bytes) {
    KVCACHE_ASSIGN_OR_RETURN(block, MakeBlock(kBlockBytes));
    block_ = block;
    used_ = 0;
  }
  const std::size_t offset = used_;
  used_ += RoundUp(size_bytes, AlignedBuffer::kAlignmentBytes);
  return WeightPiece(std::move(block), offset, size_bytes);
}

}  // namespace kvcache::cpu
