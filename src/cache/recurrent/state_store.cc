#include "cache/recurrent/state_store.h"

#include <algorithm>

namespace kvcache {
namespace {

TensorView Column(const TensorView& view, std::size_t i) {
  TensorView column = view;
  column.dims[1] = 1;
  column.data += static_cast<std::int64_t>(i) * view.stride_bytes[1];
  return column;
}

}  // namespace

void StateStore::Reset(KvBackend& backend, std::int64_t values, std::span<const int> layers,
                       std::int32_t cells, std::int32_t page_cells) {
  backend_ = &backend;
  values_ = values;
  page_cells_ = page_cells;
  pages_ = 1 + (cells + page_cells - 1) / page_cells;
  buffers_.clear();
  layers_.assign(layers.begin(), layers.end());
  buffers_.resize(layers.size() * pages_);
}

Result<std::unique_ptr<Buffer>> StateStore::Allocate(std::int64_t cells, int layer) {
  const std::int64_t bytes = BytesOf(DType::kF32, values_ * cells);
  const auto size = static_cast<std::size_t>(bytes);
  auto buffer = layer == kNoLayer ? backend_->Allocate(size)
                                  : backend_->AllocateForLayer(layers_[layer], size);
  if (buffer.ok()) allocated_bytes_ += bytes;
  return buffer;
}

Status StateStore::Ensure(int layer, std::span<const std::int32_t> cells) {
  for (const std::int32_t cell : cells) {
    std::unique_ptr<Buffer>& page = buffers_[layer * pages_ + PageOf(cell)];
    if (page != nullptr) continue;
    KVCACHE_ASSIGN_OR_RETURN(page, Allocate(cell == kZeros ? 1 : page_cells_, layer));
  }
  return Status::Ok();
}

void StateStore::Release(const std::function<bool(std::int32_t cell)>& in_use) {
  const auto drop = [&](std::unique_ptr<Buffer>& buffer) {
    if (buffer != nullptr) allocated_bytes_ -= static_cast<std::int64_t>(buffer->size_bytes());
    buffer.reset();
  };
  for (std::int32_t page = 1; page < pages_; ++page) {
    bool used = false;
    for (std::int32_t i = 0; i < page_cells_ && !used; ++i)
      used = in_use(1 + (page - 1) * page_cells_ + i);
    for (std::size_t at = page; !used && at < buffers_.size(); at += pages_) drop(buffers_[at]);
  }
  drop(gathered_);
  drop(scratch_);
}

bool StateStore::Adjacent(std::span<const std::int32_t> cells) const {
  for (std::size_t i = 1; i < cells.size(); ++i) {
    if (cells[i] != cells[i - 1] + 1 || PageOf(cells[i]) != PageOf(cells[i - 1])) return false;
  }
  return true;
}

TensorView StateStore::View(int layer, std::int32_t first, std::size_t cells) const {
  Buffer& page = *buffers_[layer * pages_ + PageOf(first)];
  TensorView view =
      TensorView::Dense(page.data(), DType::kF32, values_, static_cast<std::int64_t>(cells));
  view.data += IndexInPage(first) * view.stride_bytes[1];
  return view;
}

Result<TensorView> StateStore::Scratch(std::unique_ptr<Buffer>& buffer, std::size_t cells) {
  const std::int64_t bytes = BytesOf(DType::kF32, values_ * static_cast<std::int64_t>(cells));
  if (buffer == nullptr || static_cast<std::int64_t>(buffer->size_bytes()) < bytes) {
    if (buffer != nullptr) allocated_bytes_ -= static_cast<std::int64_t>(buffer->size_bytes());
    buffer.reset();
    KVCACHE_ASSIGN_OR_RETURN(buffer, Allocate(static_cast<std::int64_t>(cells), kNoLayer));
  }
  return TensorView::Dense(buffer->data(), DType::kF32, values_, static_cast<std::int64_t>(cells));
}

Result<TensorView> StateStore::Read(int layer, std::span<const std::int32_t> cells) {
  KVCACHE_RETURN_IF_ERROR(Ensure(layer, cells));
  if (Adjacent(cells)) return View(layer, cells.front(), cells.size());
  KVCACHE_ASSIGN_OR_RETURN(const TensorView gathered, Scratch(gathered_, cells.size()));
  for (std::size_t i = 0; i < cells.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(backend_->CopyValues(View(layer, cells[i], 1), Column(gathered, i)));
  }
  return gathered;
}

Result<TensorView> StateStore::Target(int layer, std::span<const std::int32_t> cells) {
  KVCACHE_RETURN_IF_ERROR(Ensure(layer, cells));
  if (Adjacent(cells)) return View(layer, cells.front(), cells.size());
  return Scratch(scratch_, cells.size());
}

// A sequence needs two cells, because a pass reads one and writes the other.
Result<TensorView> StateStore::Reserve(int layer, std::int32_t count) {
  for (std::int32_t cell = 0; cell <= std::min(2 * count, (pages_ - 1) * page_cells_); ++cell) {
    KVCACHE_RETURN_IF_ERROR(Ensure(layer, std::span(&cell, 1)));
  }
  return Scratch(scratch_, count);
}

Status StateStore::Write(int layer, std::span<const std::int32_t> cells, const TensorView& state) {
  KVCACHE_RETURN_IF_ERROR(Ensure(layer, cells));
  if (Adjacent(cells)) {
    const TensorView target = View(layer, cells.front(), cells.size());
    return target.data == state.data ? Status::Ok() : backend_->CopyValues(state, target);
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(backend_->CopyValues(Column(state, i), View(layer, cells[i], 1)));
  }
  return Status::Ok();
}

}  // namespace kvcache
