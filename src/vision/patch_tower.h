// The tower of all families: patches → layers → tokens, in steps.
//
//   embed all pieces │ layer 0: keys of all pieces │ layer 0: the rest of all pieces │ … │ tokens of all pieces
//
// Behind a layer of settings.deep_layers all pieces make their part of the embeddings.
//
// Thread safety: as VisionTower.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/graph/activation_buffer.h"
#include "model/graph/pass.h"
#include "vision/patch_embedding.h"
#include "vision/patch_order.h"
#include "vision/picture_attention.h"
#include "vision/token_head.h"
#include "vision/tower_layer.h"
#include "vision/vision_tower.h"

namespace kvcache::vision {

class PatchTower final : public VisionTower {
 public:
  PatchTower(VisionSettings settings, Backend& backend)
      : settings_(std::move(settings)),
        backend_(backend),
        rotation_(settings_.rotation, settings_.head_dim()) {}

  Status LoadWeights(const GgufFile& file);

  const VisionSettings& settings() const override { return settings_; }
  int embedding_width() const override { return settings_.embedding_width * settings_.parts(); }

  Status Begin(const PreparedPicture& picture) override;
  Status Step(int rows) override;
  void Release() override;
  bool done() const override { return stage_ == Stage::kDone; }
  std::span<const float> embeddings() const override { return embeddings_; }
  std::int64_t ActivationBytes() const override;

 private:
  enum class Stage : std::uint8_t { kNone, kEmbed, kKeys, kLayer, kDeep, kTokens, kDone };

  Status Check(const PreparedPicture& picture) const;
  Status Reserve(const PictureLayout& layout);
  Status TakePicture(const PreparedPicture& picture);
  Status RunPiece(std::int64_t count);
  void RunStage(Pass& pass, std::int64_t first);
  Status RunTokens(std::int64_t first, std::int64_t count);
  void Deliver(std::int64_t first, std::int64_t count, int part);
  void PutRowBreaks();
  void GoOn(std::int64_t rows);
  std::int64_t PatchesOfToken() const { return std::int64_t{settings_.merge} * settings_.merge; }
  // The part of the embeddings that the present stage makes: 0 at the end, else that of the present layer.
  int PresentPart() const;
  const TokenHead& HeadOf(int part) const { return *heads_[static_cast<std::size_t>(part)]; }
  TensorView States(std::int64_t first, std::int64_t count) const;

  VisionSettings settings_;
  Backend& backend_;

  PatchEmbedding embedding_;
  std::vector<TowerLayer> layers_;
  std::vector<std::unique_ptr<TokenHead>> heads_;  // of each part
  std::vector<float> row_break_;
  PlacedTensors placed_;

  // The present picture.
  PictureLayout layout_;
  PatchOrder order_;
  PatchRotation rotation_;
  std::vector<float> pixels_;     // [patch_values, patches], until all are embedded
  ActivationBuffer states_;       // [width, patches]
  ActivationBuffer activations_;  // of a step
  PictureAttention attention_;
  std::vector<float> made_;          // embeddings of a step, in the order of its tokens
  std::vector<float> embeddings_;    // [embedding width, tokens]
  std::vector<Position> positions_;  // zeros, for a pass's batch

  Stage stage_ = Stage::kNone;
  std::size_t layer_ = 0;
  std::int64_t next_row_ = 0;
};

}  // namespace kvcache::vision
