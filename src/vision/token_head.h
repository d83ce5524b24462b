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
  // batch] stand side by side. Changes x.
  virtual void Run(Pass& pass, const TensorView& x, const TensorView& out) const = 0;

  // Of weights that neither the file nor a WeightReader has.
  virtual std::size_t owned_bytes() const { return 0; }
};

// Takes the tensors of the projector. Errors name the tensor.
Result<std::unique_ptr<TokenHead>> LoadTokenHead(TowerSource& source,
                                                 const VisionSettings& settings);

// gemma3: the mean of merge * merge patches, an RMS norm, a matrix whose rows are inputs.
Result<std::unique_ptr<TokenHead>> LoadGemma3Head(TowerSource& source,
                                                  const VisionSettings& settings);

}  // namespace kvcache::vision
