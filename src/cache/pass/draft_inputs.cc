#include "cache/pass/draft_inputs.h"

#include <algorithm>

namespace kvcache {

void DraftInputStore::Reset(KvBackend& backend, std::int64_t values, int layers) {
  backend_ = &backend;
  values_ = values;
  buffers_.clear();
  buffers_.resize(layers);
}

Status DraftInputStore::Ensure(int layer, std::int64_t drafts) {
  std::unique_ptr<Buffer>& buffer = buffers_[layer];
  const std::int64_t bytes = BytesOf(DType::kF32, values_ * drafts);
  const auto held = buffer == nullptr ? 0 : static_cast<std::int64_t>(buffer->size_bytes());
  if (values_ == 0 || held >= bytes) return Status::Ok();
  buffer.reset();
  allocated_bytes_ -= held;
  KVCACHE_ASSIGN_OR_RETURN(buffer, backend_->Allocate(static_cast<std::size_t>(bytes)));
  allocated_bytes_ += bytes;
  return Status::Ok();
}

void DraftInputStore::Release() {
  for (std::unique_ptr<Buffer>& buffer : buffers_) buffer.reset();
  allocated_bytes_ = 0;
}

std::int64_t DraftInputStore::GrowthOf(std::int64_t drafts) const {
  const std::int64_t bytes = BytesOf(DType::kF32, values_ * drafts);
  std::int64_t growth = 0;
  for (const std::unique_ptr<Buffer>& buffer : buffers_) {
    const auto held = buffer == nullptr ? 0 : static_cast<std::int64_t>(buffer->size_bytes());
    growth += std::max<std::int64_t>(bytes - held, 0);
  }
  return growth;
}

TensorView DraftInputStore::View(int layer, std::int64_t drafts) const {
  std::byte* const data = values_ == 0 ? nullptr : buffers_[layer]->data();
  return TensorView::Dense(data, DType::kF32, values_, drafts);
}

}  // namespace kvcache
