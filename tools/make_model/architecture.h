// What an architecture puts into a file: its metadata and its tensors. One .cc file and one
// row of the table in architecture.cc each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "make_model/random_weights.h"
#include "make_model/shape.h"
#include "model/gguf_writer.h"

namespace kvcache::make_model {

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> dims;  // fastest first; rank 1 stays f32, rank 2 gets --type
  Distribution distribution = Distribution::kNormal;
  float scale = 1.0f;
};

struct Architecture {
  std::string_view name;  // general.architecture
  void (*add_metadata)(const Shape& shape, GgufHeader& header);
  std::vector<TensorSpec> (*tensors)(const Shape& shape);  // in the file's order
};

// kNotFound, with those that there are.
Result<const Architecture*> FindArchitecture(std::string_view name);

void AddLlamaMetadata(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> LlamaTensors(const Shape& shape);

}  // namespace kvcache::make_model
