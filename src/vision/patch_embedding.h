// The beginning of a tower: a patch's pixels → its state before the first layer.
//
//   x = norm(kernel · pixels + bias + position)        without what the file lacks
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/graph/pass.h"
#include "vision/patch_order.h"
#include "vision/tower_weights.h"
#include "vision/vision_settings.h"

namespace kvcache::vision {

class PatchEmbedding {
 public:
  // Takes v.patch_embd, v.position_embd and v.pre_ln. Errors name the tensor.
  Status Load(TowerSource& source, const VisionSettings& settings);

  // x [width, batch] = the states of rows from `first` on. `pixels` [patch_values, patches] are in the order of text.
  void Run(Pass& pass, const PatchOrder& order, std::int64_t first, const float* pixels,
           const TensorView& x);

 private:
  void Multiply(Pass& pass, const TensorView& patches, const TensorView& x) const;
  void AddPositions(Pass& pass, const PatchOrder& order, std::size_t first, const TensorView& x);
  Status LoadAxisPositions(TowerSource& source, const VisionSettings& settings);
  void AddAxisPositions(Pass& pass, const PatchOrder& order, std::size_t first,
                        const TensorView& x);
  void AddPositionsBetween(Pass& pass, const PatchOrder& order, std::size_t first,
                           const TensorView& x);

  std::int64_t patch_values_ = 0;
  Projection kernel_;
  std::optional<Projection> second_kernel_;  // over the second of two equal frames
  std::optional<TensorView> positions_;      // [width, side * side], or [width, columns + rows]
  int axis_positions_ = 0;                   // columns, and rows; 0: the table is one of patches
  PlacedTensors placed_;
  int interpolated_side_ =
      0;  // of the square of positions; 0: they are those of the picture's grid
  std::optional<Norm> norm_;
  std::vector<float> gathered_;  // the pixels of a step's patches
  std::vector<std::int32_t> indices_;
  std::vector<float> factors_;
};

}  // namespace kvcache::vision
