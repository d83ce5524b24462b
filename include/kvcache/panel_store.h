// Panels: weights of block types in the form that a backend's kernels read. Somebody may keep them from one load of a
// model to the next, so that a backend need not pack them again.
//
// Thread safety: CheckPiece from any number of threads; the other calls from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvcache/tensor.h"

namespace kvcache {

class PanelStore {
 public:
  virtual ~PanelStore() = default;

  // Returns the panels of `w`, a matrix or a stack as Backend::MakeLinear takes it: `size_bytes` bytes, 64-byte
  // aligned, valid as long as the store. Null: it has none of this size. Nobody has checked the bytes yet.
  virtual const std::byte* Find(const TensorView& w, std::size_t size_bytes) = 0;

  // Takes note of the panels that a backend made of `w`. The store may keep the pointer for as long as it likes.
  virtual void Keep(const TensorView& w, std::shared_ptr<const std::byte> panels,
                    std::size_t size_bytes) = 0;

  // Panels that Find returned are checked in pieces, before they are used. The numbers are of the pieces that the
  // bytes touch.
  struct Pieces {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  virtual Pieces PiecesOf(const std::byte* panels, std::size_t size_bytes) const = 0;
  // Returns whether a piece is as Keep was given it. Reads it the first time.
  virtual bool CheckPiece(std::int64_t piece) = 0;
};

// A Backend may implement this class too.
class PanelUser {
 public:
  virtual ~PanelUser() = default;

  // From now on MakeLinear takes panels from `store`, and gives it those that it makes; null: none any more. Weights
  // refer to panels of the store, and to the rows they were made from: damaged panels are packed again when they are
  // first used.
  virtual void UsePanels(std::shared_ptr<PanelStore> store) = 0;
  // Returns the version of the panels' layout. Panels of another version are useless.
  virtual std::uint32_t panel_layout() const = 0;
};

}  // namespace kvcache
