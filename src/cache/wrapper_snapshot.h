// A snapshot of a wrapper.
//
// Thread safety: as in kvcache/snapshot.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/snapshot.h"

namespace kvcache {

// One snapshot for each inner cache; null where there was nothing to hold.
class WrapperSnapshot final : public Snapshot {
 public:
  WrapperSnapshot(const Cache* owner, Position begin, Position end)
      : Snapshot(begin, end), owner_(owner) {}
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
  const Cache* owner() const { return owner_; }

  std::vector<std::unique_ptr<Snapshot>> parts;  // [caches]

 private:
  const Cache* owner_;
};

}  // namespace kvcache
