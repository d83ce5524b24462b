// The memory of two backends behind one set of addresses (split_backend.h).
//
// Thread safety: one thread at a time. Errors: kOutOfMemory; kInternal for memory that the other backend alone has.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "kvcache/backend.h"

namespace kvcache {

class SplitMemory {
 public:
  static constexpr int kBoth = -1;

  SplitMemory(Backend& first, Backend& second) : sides_{&first, &second} {}

  // Returns memory of both backends, with the first one's address.
  Result<std::unique_ptr<Buffer>> AllocateInBoth(std::size_t size_bytes);
  // Returns memory of one backend, with its address.
  Result<std::unique_ptr<Buffer>> AllocateIn(int side, std::size_t size_bytes);

  // Returns the backend that alone has the memory; kBoth: it exists in both, or is not known here (a host's).
  int OwnerOf(const std::byte* address) const;

  // Returns a state's address that one backend alone has, or null.
  const std::byte* StateOf(const StateSegments& states) const;

  // Returns what a backend has for an address.
  Result<std::byte*> At(std::byte* address, int side);
  // Puts what a backend has in the place of addresses; the result for states is valid until the next call.
  Status Translate(TensorView& view, int side);
  Status Translate(LayerKv& layer, int side);
  Result<StateSegments> Translate(const StateSegments& states, int side);

 private:
  class OwnBuffer;

  struct Block {
    std::size_t size_bytes = 0;
    int owner = kBoth;
    std::unique_ptr<Buffer> second{};  // of a block in both, when the second backend has used it
  };
  Block* Find(const std::byte* address, const std::byte** begin);

  std::array<Backend*, 2> sides_;
  std::vector<StateSegment> segments_;
  std::map<const std::byte*, Block> blocks_;  // by the address that callers see
};

}  // namespace kvcache
