// The four states of a token in gemma3n (AltUp): how they arise, how a layer predicts and corrects them, and how
// they become one. gemma3n.cc has the equations.
//
// States are [hidden_size, batch, 4], f32 and dense.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

// Splits vectors of one size into a direction and a length.
class VectorLengths {
 public:
  // Errors: those of Backend::MakeLinear.
  static Result<VectorLengths> Make(Backend& backend, int layer, std::int64_t size);

  // direction = x / rms(x), zeros for x = 0; may be x.
  void Direct(Pass& pass, const TensorView& x, const TensorView& direction) const {
    pass.RmsNorm(x, norm_, direction);
  }
  // The same, and length [1, batch] = rms(x): the mean of x · direction. `direction` must not be x.
  void Split(Pass& pass, const TensorView& x, const TensorView& direction,
             const TensorView& length) const;
  // out = x × weight, value by value; may be x. `weight` is [size].
  void Scale(Pass& pass, const TensorView& x, const TensorView& weight,
             const TensorView& out) const;

 private:
  PlacedVector ones_;          // [size]
  std::vector<float> shares_;  // [size] of mean_; moving a VectorLengths keeps the address
  Norm norm_;
  Projection mean_;  // size → 1
};

class AltUp {
 public:
  static constexpr int kStates = 4;

  // What a layer has for its states.
  struct Layer {
    Norm router_norm;                     // [hidden_size]
    Projection router, predict, correct;  // hidden_size → 4, 4 → 16, 4 → 4, the last plus one
    PlacedVector ones;                    // [kStates]
  };

  // Takes altup_proj and altup_unembd_proj. Errors name the tensor.
  static Result<AltUp> Load(WeightReader& reader, Backend& backend, std::int64_t hidden_size);
  // Takes the layer's altup_router_norm, altup_router, altup_predict_coef and altup_correct_coef; the result is
  // valid as long as this object's memory. Errors name the tensor.
  Result<Layer> LoadLayer(WeightReader& reader, Backend& backend, const LayerParams& params,
                          int layer) const;

  // Returns state i: [hidden_size, batch].
  static TensorView StateOf(const TensorView& states, int i) {
    TensorView view = WithOffset(states, i * states.stride_bytes[2]);
    view.dims[2] = 1;
    return view;
  }
  // Takes states from the pass.
  TensorView Take(Pass& pass) const { return pass.Take(hidden_size_, pass.batch(), kStates); }

  // Makes the states from the embedded tokens x.
  void Spread(Pass& pass, const TensorView& x, const TensorView& states) const;
  // x = the mean of the states, the others multiplied by their matrices.
  void Merge(Pass& pass, const TensorView& states, const TensorView& x) const;
  void Predict(Pass& pass, const Layer& layer, const TensorView& states,
               const TensorView& predictions) const;
  // Sets the states by what the layer found, y [hidden_size, batch], in place of the first prediction.
  void Correct(Pass& pass, const Layer& layer, const TensorView& predictions, const TensorView& y,
               const TensorView& states) const;

 private:
  // planes [batch, outputs] = by · r(y), transposed.
  void Coefficients(Pass& pass, const Layer& layer, const Projection& by, const TensorView& y,
                    const TensorView& planes) const;

  std::int64_t hidden_size_ = 0;
  std::unique_ptr<LinearWeight> spread_, merge_;  // three matrices each, hidden_size → hidden_size
  VectorLengths lengths_;                         // of states, where Spread and Merge are
};

}  // namespace kvcache
