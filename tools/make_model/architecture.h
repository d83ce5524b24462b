// The metadata and tensors that an architecture writes into a file. families.cc has a row for each.
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
  std::vector<std::int64_t>
      dims;  // fastest first; tensors of rank 1 are f32, others have the type of --type
  Distribution distribution = Distribution::kNormal;
  float scale = 1.0f;
  bool keep_f32 = false;           // f32 in files of every type
  std::vector<float> values = {};  // these values instead of random ones, unless empty
};

enum class ExpertUse : std::uint8_t { kNone, kAllowed, kNeeded };

struct Architecture {
  std::string_view name;  // general.architecture
  ExpertUse experts;
  void (*add_metadata)(const Shape& shape, GgufHeader& header);
  std::vector<TensorSpec> (*tensors)(const Shape& shape);  // in the file's order
};

// Returns the architecture. Errors: kNotFound with the known names.
Result<const Architecture*> FindArchitecture(std::string_view name);

// Returns kInvalidArgument if the shape has experts and the architecture does not allow them, or if
// it lacks experts that the architecture needs.
Status CheckExperts(const Architecture& architecture, const Shape& shape);

}  // namespace kvcache::make_model
