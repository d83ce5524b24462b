#include "backend/cuda/device/call_memory.h"

#include <algorithm>
#include <utility>

namespace kvcache::cuda {
namespace {

constexpr std::size_t kTakeAlignment = 256;
// Between two pieces, so that a device that checks kernels sees an access beyond a piece.
constexpr std::size_t kGap = kTakeAlignment;
constexpr std::size_t kFirstChunk = std::size_t{1} << 20;

}  // namespace

void CallMemory::BeginCall() {
  if (chunk_ != nullptr) device_.Mark(chunk_->data(), used_, MemoryUse::kNone);
  used_ = 0;
  if (full_.empty()) return;
  // An error may be that of a launch which the device has held back: nobody else hears of it. The memory is free all the
  // same, since nothing runs any more.
  Status waited = device_.Synchronize();
  if (failed_.ok()) failed_ = std::move(waited);
  full_.clear();
}

Result<std::byte*> CallMemory::Take(std::size_t bytes) {
  if (!failed_.ok()) return std::exchange(failed_, Status::Ok());
  const std::size_t size = (bytes + kTakeAlignment - 1) / kTakeAlignment * kTakeAlignment + kGap;
  if (chunk_ == nullptr || size > chunk_->size_bytes() - used_) {
    // The next chunk alone holds all that this call has taken, so that the next call fits in it; if there is memory.
    const std::size_t before = chunk_ == nullptr ? 0 : chunk_->size_bytes();
    const std::size_t grown = std::max(kFirstChunk, 2 * before);
    auto chunk = device_.Allocate(std::max(grown, before + size));
    if (chunk.status().code() == StatusCode::kOutOfMemory) chunk = device_.Allocate(size);
    KVCACHE_RETURN_IF_ERROR(chunk.status());
    if (chunk_ != nullptr) full_.push_back(std::move(chunk_));
    chunk_ = std::move(chunk).value();
    used_ = 0;
    device_.Mark(chunk_->data(), chunk_->size_bytes(), MemoryUse::kNone);
  }
  std::byte* const at = chunk_->data() + used_;
  used_ += size;
  device_.Mark(at, bytes, MemoryUse::kUndefined);
  return at;
}

}  // namespace kvcache::cuda
