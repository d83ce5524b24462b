// Matrices that a projector file stores otherwise than the layers of a model: kernels of a convolution, and matrices
// whose rows are inputs.
//
// Thread safety: one thread at a time. Errors name the tensor: kCorrupt if it is missing or has another shape;
// kUnsupported for its type; kOutOfMemory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/backend.h"
#include "model/load/weights.h"

namespace kvcache::vision {

// Where weights come from.
struct TowerSource {
  const GgufFile& file;
  Backend& backend;
  WeightReader& reader;
};

// Takes the kernel of a convolution whose stride is its size, dims {p, p, 3, outputs}: a matrix over the values of a
// patch, 3 * p * p = `inputs`.
Result<std::unique_ptr<LinearWeight>> TakeKernel(TowerSource& source, const std::string& name,
                                                 std::int64_t inputs, std::int64_t outputs);

// A matrix of f32 values that are not in the file.
struct OwnMatrix {
  std::vector<float> values;
  std::unique_ptr<LinearWeight> weight;
};

// Takes a matrix whose rows are inputs, dims {outputs, inputs}.
Result<OwnMatrix> TakeTransposed(TowerSource& source, const std::string& name, std::int64_t inputs,
                                 std::int64_t outputs);

// Takes a matrix over the `patches` patches of a token, dims {width * patches, outputs}, in whose rows a value of all
// patches follows another; returns it for inputs in which a patch follows another.
Result<OwnMatrix> TakeMerger(TowerSource& source, const std::string& name, std::int64_t width,
                             std::int64_t patches, std::int64_t outputs);

}  // namespace kvcache::vision
