// One layer of a tower, over pieces of a picture's patches:
//
//   x = x + o · attention(norm1(x));  x = x + ffn(norm2(x))
//
// Some families have norms of heads, and of what the two parts add.
//
// All pieces give their keys and values before one of them attends.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/graph/pass.h"
#include "vision/patch_order.h"
#include "vision/patch_rotation.h"
#include "vision/picture_attention.h"
#include "vision/tower_linear.h"
#include "vision/vision_settings.h"

namespace kvcache::vision {

// The rows that a step is about.
struct PieceOfPicture {
  PictureAttention& attention;
  const PatchOrder& order;
  const PatchRotation& rotation;
  std::int64_t first = 0;  // row
};

class TowerLayer {
 public:
  // Takes v.blk.INDEX. Errors name the tensor.
  static Result<TowerLayer> Load(TowerSource& source, const VisionSettings& settings, int index);

  // Stores the keys and values of x [width, batch].
  void StoreKeys(Pass& pass, const PieceOfPicture& piece, const TensorView& x) const;

  // x [width, batch] = the layer's result. REQUIRES: the keys of all rows are stored.
  void Run(Pass& pass, const PieceOfPicture& piece, const TensorView& x) const;

 private:
  Status LoadAttention(TowerSource& source, const VisionSettings& settings,
                       const std::string& prefix);
  Status LoadFeedForward(TowerSource& source, const VisionSettings& settings,
                         const std::string& prefix);
  Status LoadHeadNorms(TowerSource& source, const VisionSettings& settings,
                       const std::string& prefix);
  void Attend(Pass& pass, const PieceOfPicture& piece, const TensorView& h) const;
  void FeedForward(Pass& pass, const TensorView& h) const;

  std::int64_t heads_ = 0;
  std::int64_t head_dim_ = 0;
  std::int64_t ffn_ = 0;
  float scale_ = 1.0F;
  PictureAttention::Reach reach_ = PictureAttention::Reach::kAll;
  Activation activation_ = Activation::kGelu;
  Norm attention_norm_, ffn_norm_;
  std::optional<Norm> q_norm_, k_norm_, v_norm_;
  std::optional<Norm> attention_result_norm_, ffn_result_norm_;
  PlacedVector ones_;  // the weights of v_norm_
  TowerLinear q_, k_, v_, o_;
  std::optional<TowerLinear> gate_;
  TowerLinear up_, down_;
};

}  // namespace kvcache::vision
