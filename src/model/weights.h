// Takes tensors out of a model file by name, checking shape and type, and remembers which
// were asked for, so that a tensor that nobody uses is an error instead of a silently wrong
// model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/gguf.h"

namespace kvcache {

class WeightReader {
 public:
  WeightReader(const GgufFile& file, Backend& backend) : file_(file), backend_(backend) {}

  bool Has(std::string_view name) const;

  // A matrix of `outputs` rows with `inputs` values, ready for Backend::Linear. Pages of the
  // file that were copied into the backend's own form are given back to the system.
  Result<std::unique_ptr<LinearWeight>> Matrix(const std::string& name, std::int64_t inputs,
                                               std::int64_t outputs);

  // A view of the matrix in the file, for row look-ups.
  Result<TensorView> Table(const std::string& name, std::int64_t inputs, std::int64_t outputs);

  // A vector of f32 values, where it lies in the file.
  Result<TensorView> Vector(const std::string& name, std::int64_t length);

  // kUnsupported, naming the first tensor of the file that nothing above has taken.
  Status CheckAllUsed() const;

  std::size_t owned_bytes() const { return owned_bytes_; }

 private:
  Result<TensorView> Take(const std::string& name, std::int64_t d0, std::int64_t d1);

  const GgufFile& file_;
  Backend& backend_;
  std::set<std::string, std::less<>> used_;
  std::size_t owned_bytes_ = 0;
};

}  // namespace kvcache
