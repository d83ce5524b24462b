#include "make_model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/strings.h"

namespace kvcache::make_model {

void AddRopeScaling(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  const auto key = [&](std::string_view name) {
    return StrCat(architecture, ".rope.scaling.", name);
  };
  if (shape.rope_scaling != RopeScaling::kLinear && shape.rope_scaling != RopeScaling::kYarn) {
    return;
  }
  const bool yarn = shape.rope_scaling == RopeScaling::kYarn;
  header.SetString(key("type"), yarn ? "yarn" : "linear");
  header.SetFloat32(key("factor"), shape.rope_factor);
  if (yarn) {
    header.SetUint32(key("original_context_length"),
                     static_cast<std::uint32_t>(shape.rope_original_context));
  }
}

std::vector<float> Llama3Divisors(const Shape& shape) {
  constexpr double kMinRotations = 1.0;
  constexpr double kMaxRotations = 4.0;
  std::vector<float> divisors;
  for (int i = 0; i < shape.head_dim / 2; ++i) {
    const double frequency = std::pow(double{shape.rope_base}, -2.0 * i / shape.head_dim);
    const double rotations = shape.rope_original_context * frequency / (2.0 * std::numbers::pi);
    const double kept =
        std::clamp((rotations - kMinRotations) / (kMaxRotations - kMinRotations), 0.0, 1.0);
    const double multiplied = (1.0 - kept) / double{shape.rope_factor} + kept;
    divisors.push_back(static_cast<float>(1.0 / multiplied));
  }
  return divisors;
}

}  // namespace kvcache::make_model
