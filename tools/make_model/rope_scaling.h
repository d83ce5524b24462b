// How a file says that its positions are stretched.
#pragma once

#include <string_view>
#include <vector>

#include "gguf/gguf_writer.h"
#include "make_model/shape.h"

namespace kvcache::make_model {

// The keys of shape.rope_scaling; none for kNone and kLlama3.
void AddRopeScaling(std::string_view architecture, const Shape& shape, GgufHeader& header);

// Llama 3's divisors of the frequencies, [head_dim / 2]: 1 for pairs that turn at least four times
// within the original context, the factor for those that turn less than once, a ramp between.
std::vector<float> Llama3Divisors(const Shape& shape);

}  // namespace kvcache::make_model
