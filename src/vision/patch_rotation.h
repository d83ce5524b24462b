// Rotates the queries and keys of patches by their rows and columns.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "model/graph/pass.h"
#include "vision/patch_order.h"
#include "vision/vision_settings.h"

namespace kvcache::vision {

class PatchRotation {
 public:
  PatchRotation() = default;
  // REQUIRES: with a rotation, head_dim is a multiple of 4. Throws std::bad_alloc.
  PatchRotation(Rotation rotation, int head_dim);

  // Rotates heads [head_dim, heads, batch] of the rows from `first` on.
  void Run(Pass& pass, const PatchOrder& order, std::int64_t first, const TensorView& heads) const;

 private:
  RopeParams Params(std::span<const float> frequencies, int first) const;

  Rotation rotation_ = Rotation::kNone;
  int head_dim_ = 0;
  std::vector<float> by_row_, by_column_;  // frequencies
};

}  // namespace kvcache::vision
