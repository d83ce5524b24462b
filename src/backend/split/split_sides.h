// The two backends of a split backend (split_backend.h), and which of them a call belongs to.
//
// Thread safety: one thread at a time. Errors: those of the backends and of SplitMemory.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/split/split_memory.h"
#include "kvcache/backend.h"

namespace kvcache {

class SplitSides {
 public:
  // The second backend has the layers from `boundary` on.
  SplitSides(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second, int boundary)
      : sides_{std::move(first), std::move(second)},
        memory_(*sides_[0], *sides_[1]),
        boundary_(boundary) {}

  Backend& on(int side) const { return *sides_[static_cast<std::size_t>(side)]; }
  // The backend of the layer that was entered.
  Backend& here() const { return on(side_); }
  const int& side() const { return side_; }
  int SideOfLayer(int layer) const { return layer < boundary_ ? 0 : 1; }
  SplitMemory& memory() { return memory_; }

  // Enters a layer, and brings the values that are in use to its backend.
  Status Enter(int layer, const TensorView& live);

  // Returns the backend that a call with this memory belongs to: the only one that has it, or the layer's.
  int SideOf(const std::byte* address) const;

  // Calls f(backend, views…) with the views as `side` has them.
  template <class F, class... Views>
  Status With(int side, F&& f, const Views&... views) {
    std::array<TensorView, sizeof...(views)> own{views...};
    for (TensorView& view : own) KVCACHE_RETURN_IF_ERROR(memory_.Translate(view, side));
    return std::apply([&](const auto&... each) { return f(on(side), each...); }, own);
  }

  // Copies f32 values that both backends have from one to the other.
  Status Bring(const TensorView& view, int from, int to);

 private:
  std::array<std::unique_ptr<Backend>, 2> sides_;
  SplitMemory memory_;
  int boundary_;
  int side_ = 0;
  std::vector<std::byte> staging_;
};

}  // namespace kvcache
