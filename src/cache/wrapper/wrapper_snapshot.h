// A snapshot of a wrapper.
//
// Thread safety: as in kvcache/snapshot.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/snapshot.h"

namespace kvcache {

// One snapshot for each inner cache; null where there was nothing to hold.
class WrapperSnapshot final : public Snapshot {
 public:
  WrapperSnapshot(std::shared_ptr<const int> owner, Position begin, Position end)
      : Snapshot(begin, end), owner_(std::move(owner)) {}
  std::int64_t HeldBytes() const override {
    std::int64_t bytes = 0;
    for (const auto& part : parts) bytes += part == nullptr ? 0 : part->HeldBytes();
    return bytes;
  }
  std::int64_t HeldCells() const override {
    std::int64_t cells = 0;
    for (const auto& part : parts) cells += part == nullptr ? 0 : part->HeldCells();
    return cells;
  }
  const Snapshot* Part(std::size_t i) const override {
    return i < parts.size() ? parts[i].get() : nullptr;
  }
  bool Empty() const {
    return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return !part; });
  }
  // Identifies its wrapper. It is shared, so that no later wrapper has the same address.
  const int* owner() const { return owner_.get(); }

  std::vector<std::unique_ptr<Snapshot>> parts;  // [caches]

 private:
  std::shared_ptr<const int> owner_;
};

}  // namespace kvcache
