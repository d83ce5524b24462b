// The beginning of a tower: a patch's pixels → its state before the first layer.
//
//   x = kernel · pixels + bias + position
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
  // Takes v.patch_embd and v.position_embd. Errors name the tensor.
  Status Load(TowerSource& source, const VisionSettings& settings);

  // x [width, batch] = the states of rows from `first` on. `pixels` [patch_values, patches] are in the order of text.
  void Run(Pass& pass, const PatchOrder& order, std::int64_t first, const float* pixels,
           const TensorView& x);

 private:
  void AddPositions(Pass& pass, const PatchOrder& order, std::size_t first, const TensorView& x);

  std::int64_t patch_values_ = 0;
  Projection kernel_;
  std::optional<TensorView> positions_;  // [width, patches]
  std::vector<float> gathered_;          // the pixels of a step's patches
  std::vector<std::int32_t> indices_;
};

}  // namespace kvcache::vision
