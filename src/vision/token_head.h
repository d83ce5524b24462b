// The end of a tower: the states of a picture's patches → embeddings of its tokens.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "model/graph/pass.h"
#include "vision/tower_weights.h"
#include "vision/vision_settings.h"

namespace kvcache::vision {

class TokenHead {
 public:
  virtual ~TokenHead() = default;

  // out [embedding width, batch] = the embeddings of `batch` tokens, whose patches' states x [width, merge * merge *
  // batch] stand side by side. May change x.
  virtual void Run(Pass& pass, const TensorView& x, const TensorView& out) const = 0;
};

// h [width, batch] = the mean of x [width, patches * batch] over each `patches` columns, in their order.
Status AverageColumns(Backend& backend, const TensorView& x, int patches, const TensorView& h);

// Takes the tensors of the projector. Errors name the tensor.
Result<std::unique_ptr<TokenHead>> LoadTokenHead(TowerSource& source,
                                                 const VisionSettings& settings);

// qwen2.5vl, qwen3vl: a norm of each patch, two matrices over a token's patches.
Result<std::unique_ptr<TokenHead>> LoadQwenHead(TowerSource& source,
                                                const VisionSettings& settings);

// qwen3vl: what a layer's states become (v.deepstack.LAYER).
Result<std::unique_ptr<TokenHead>> LoadDeepHead(TowerSource& source, const VisionSettings& settings,
                                                int layer);

// pixtral, mistral3: two matrices; before them mistral3 merges patches.
Result<std::unique_ptr<TokenHead>> LoadPixtralHead(TowerSource& source,
                                                   const VisionSettings& settings);

// gemma4: the mean of merge * merge patches, times sqrt(width), moved and scaled; an RMS norm without weights, a matrix.
Result<std::unique_ptr<TokenHead>> LoadGemma4Head(TowerSource& source,
                                                  const VisionSettings& settings);

// gemma3: the mean of merge * merge patches, an RMS norm, a matrix whose rows are inputs.
Result<std::unique_ptr<TokenHead>> LoadGemma3Head(TowerSource& source,
                                                  const VisionSettings& settings);

}  // namespace kvcache::vision
