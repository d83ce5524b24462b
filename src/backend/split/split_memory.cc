#include "backend/split/split_memory.h"

#include <cstdint>
#include <iterator>
#include <utility>

#include "base/errors.h"

namespace kvcache {

// A block, known by its address as long as the object lives.
class SplitMemory::OwnBuffer final : public Buffer {
 public:
  OwnBuffer(SplitMemory& memory, std::unique_ptr<Buffer> inner)
      : memory_(memory), inner_(std::move(inner)) {}
  ~OwnBuffer() override { memory_.blocks_.erase(inner_->data()); }
  std::byte* data() override { return inner_->data(); }
  std::size_t size_bytes() const override { return inner_->size_bytes(); }

 private:
  SplitMemory& memory_;
  std::unique_ptr<Buffer> inner_;
};

Result<std::unique_ptr<Buffer>> SplitMemory::AllocateInBoth(std::size_t size_bytes) {
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> made, AllocateIn(0, size_bytes));
  blocks_[made->data()].owner = kBoth;
  return made;
}

Result<std::unique_ptr<Buffer>> SplitMemory::AllocateIn(int side, std::size_t size_bytes) {
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> inner,
                           sides_[static_cast<std::size_t>(side)]->Allocate(size_bytes));
  std::unique_ptr<Buffer> made;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a buffer", [&] {
    blocks_[inner->data()] = {.size_bytes = size_bytes, .owner = side};
    made = std::make_unique<OwnBuffer>(*this, std::move(inner));
  }));
  return made;
}

SplitMemory::Block* SplitMemory::Find(const std::byte* address, const std::byte** begin) {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  const auto at = std::prev(after);
  if (address >= at->first + at->second.size_bytes) return nullptr;
  *begin = at->first;
  return &at->second;
}

int SplitMemory::OwnerOf(const std::byte* address) const {
  const std::byte* begin = nullptr;
  const Block* const block = const_cast<SplitMemory*>(this)->Find(address, &begin);
  return block == nullptr ? kBoth : block->owner;
}

Result<std::byte*> SplitMemory::At(std::byte* address, int side) {
  const std::byte* begin = nullptr;
  Block* const block = Find(address, &begin);
  if (block == nullptr) {
    if (sides_[static_cast<std::size_t>(side)]->works_in_host_memory()) return address;
    return Status(StatusCode::kInternal,
                  "a call has memory of the host for a backend that does not work there");
  }
  if (block->owner == side || (block->owner == kBoth && side == 0)) return address;
  if (block->owner != kBoth) {
    return Status(StatusCode::kInternal, "a call mixes memory of two backends");
  }
  if (block->second == nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(block->second, sides_[1]->Allocate(block->size_bytes));
  }
  return block->second->data() + (address - begin);
}

// Accepted drafts are computed again outside of a pass, so the states decide where.
const std::byte* SplitMemory::StateOf(const StateSegments& states) const {
  for (const StateSegment& segment : states.segments) {
    if (OwnerOf(segment.after) != kBoth) return segment.after;
  }
  return nullptr;
}

Status SplitMemory::Translate(TensorView& view, int side) {
  if (view.data == nullptr) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(view.data, At(view.data, side));
  return Status::Ok();
}

Status SplitMemory::Translate(LayerKv& layer, int side) {
  if (layer.on_host) return Status::Ok();
  for (std::byte** const address : {&layer.k, &layer.v}) {
    if (*address == nullptr) continue;
    KVCACHE_ASSIGN_OR_RETURN(*address, At(*address, side));
  }
  return Status::Ok();
}

Result<StateSegments> SplitMemory::Translate(const StateSegments& states, int side) {
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for the states of a pass", [&] {
    segments_.assign(states.segments.begin(), states.segments.end());
  }));
  for (StateSegment& segment : segments_) {
    if (segment.before != nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(segment.before, At(const_cast<std::byte*>(segment.before), side));
    }
    if (segment.after != nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(segment.after, At(segment.after, side));
    }
  }
  StateSegments own = states;
  own.segments = segments_;
  return own;
}

}  // namespace kvcache
