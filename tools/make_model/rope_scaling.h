// The metadata and tensors of RoPE scaling.
#pragma once

#include <string_view>
#include <vector>

#include "gguf/gguf_writer.h"
#include "make_model/shape.h"

namespace kvcache::make_model {

// Sets the keys of shape.rope_scaling; none for kNone and kLlama3.
void AddRopeScaling(std::string_view architecture, const Shape& shape, GgufHeader& header);

// Returns Llama 3's divisors of the frequencies, [head_dim / 2]: 1 for pairs that make at least
// four rotations within the original context, the factor for pairs that make less than one, a ramp
// between.
std::vector<float> Llama3Divisors(const Shape& shape);

}  // namespace kvcache::make_model
