// The shim's memory: allocations far from each other, the shared memory of a block, and the shadow of both.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "backend/cuda/device/device.h"
#include "backend/cuda/shim/mapping.h"
#include "backend/cuda/shim/shadow.h"

namespace kvcache::cuda::shim {

// Memory with its shadow. Word w of it has words[w]; its bytes have single[4w … 4w + 3] while it is split.
struct Space {
  std::uintptr_t low = 0;
  std::size_t bytes = 0;
  Cell* words = nullptr;
  Cell* single = nullptr;
};

class DeviceMemory {
 public:
  // The bytes that may be accessed are counted for pieces of this size: those at its beginning.
  static constexpr std::size_t kPieceBytes = 256;

  explicit DeviceMemory(std::size_t shared_bytes);

  // Returns `bytes` zeros. Between two allocations there are at least kGap bytes that nobody may touch.
  static constexpr std::size_t kGap = std::size_t{1} << 20;
  std::byte* Allocate(std::size_t bytes);
  void Free(std::byte* at);
  std::size_t used_bytes() const { return used_; }

  // As Device::Mark.
  void Mark(std::byte* at, std::size_t bytes, MemoryUse use);
  bool Holds(const std::byte* at, std::size_t bytes) const;
  void SetWritten(const std::byte* at, std::size_t bytes);
  // Of what was copied, those bytes count as written that were written at the source.
  void CopyWritten(const std::byte* from, const std::byte* to, std::size_t bytes);

  const Space& global() const { return global_; }
  const std::uint16_t* pieces() const { return pieces_; }
  // As much as the device has; a launch uses the beginning.
  const Space& shared() const { return shared_; }

  // The next stamp. BeginLaunch makes sure that those of a launch do not run out.
  std::uint32_t NextStamp() { return ++stamp_; }
  void BeginLaunch();

  // "offset 4 of allocation 2 (4 bytes)", or an empty text for an address elsewhere.
  std::string Describe(std::uintptr_t address) const;

 private:
  struct Allocation {
    std::size_t bytes = 0;
    int number = 0;
  };
  void Drop(std::size_t offset, std::size_t bytes);
  bool IsWritten(std::size_t offset) const;
  void SetByte(std::size_t offset, Record write);
  void SetPieces(std::size_t offset, std::size_t bytes, bool usable);

  Mapping data_;
  Mapping words_;
  Mapping single_;
  Mapping piece_sizes_;
  Mapping shared_data_;
  Mapping shared_words_;
  Mapping shared_single_;
  Space global_;
  Space shared_;
  std::uint16_t* pieces_;
  std::map<std::size_t, Allocation> allocations_;  // by offset
  std::size_t next_ = kGap;
  std::size_t used_ = 0;
  int count_ = 0;
  std::uint32_t stamp_ = 0;
};

}  // namespace kvcache::cuda::shim
