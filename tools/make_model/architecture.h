// What an architecture puts into a file: its metadata and its tensors. One row of the table in
// families.cc each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf_writer.h"
#include "kvcache/status.h"
#include "make_model/random_weights.h"
#include "make_model/shape.h"

namespace kvcache::make_model {

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> dims;  // fastest first; rank 1 stays f32, others get --type
  Distribution distribution = Distribution::kNormal;
  float scale = 1.0f;
  bool keep_f32 = false;
  std::vector<float> values = {};  // if not empty: these, instead of random ones
};

enum class ExpertUse : std::uint8_t { kNone, kAllowed, kNeeded };

struct Architecture {
  std::string_view name;  // general.architecture
  ExpertUse experts;
  void (*add_metadata)(const Shape& shape, GgufHeader& header);
  std::vector<TensorSpec> (*tensors)(const Shape& shape);  // in the file's order
};

// kNotFound, with those that there are.
Result<const Architecture*> FindArchitecture(std::string_view name);

// kInvalidArgument if the shape has experts and the architecture none, or the reverse.
Status CheckExperts(const Architecture& architecture, const Shape& shape);

}  // namespace kvcache::make_model
