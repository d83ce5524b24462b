// A linear layer of a tower: a projection, and for some towers limits of its inputs and results (Gemma 4's clipped linear
// layers).
//
// Thread safety: one thread at a time.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "model/graph/pass.h"
#include "vision/tower_weights.h"

namespace kvcache::vision {

struct ClipLimits {
  float input_min, input_max, output_min, output_max;
};

struct TowerLinear {
  Projection by;
  std::optional<ClipLimits> limits;

  // Takes NAME.weight, NAME.bias if it is there, and the limits NAME.input_min and so on: all four of them, or none.
  // Errors name the tensor.
  static Result<TowerLinear> Load(TowerSource& source, const std::string& name, std::int64_t inputs,
                                  std::int64_t outputs);
};

struct TowerProduct {
  const TowerLinear& by;
  TensorView to;  // [outputs, batch], or heads with as many values
};

// to = by · x for each product; x [inputs, batch] or heads. Products with limits are computed one after another. `to` must
// not be x.
void Multiply(Pass& pass, const TensorView& x, std::initializer_list<TowerProduct> products);

}  // namespace kvcache::vision
