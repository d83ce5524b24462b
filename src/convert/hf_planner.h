// Plans the tensors of a GGUF file from those of a Hugging Face model. Checks every shape.
//
// The first error stays; later calls do nothing. Matrices keep their type (F32, F16 or BF16);
// vectors become f32.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/hf_weights.h"
#include "convert/tensor_writer.h"
#include "kvcache/status.h"

namespace kvcache {

struct PlanOptions {
  std::function<std::int64_t(std::int64_t)> source_row = {};  // see TensorPlan
  std::int64_t source_rows = 0;                               // 0: as many as outputs
  ValueChange change = ValueChange::kNone;
  bool f32 = false;  // also for a matrix
};

class HfPlanner {
 public:
  explicit HfPlanner(HfWeights& weights) : weights_(weights) {}

  bool Has(std::string_view source) const { return weights_.Has(source); }
  void Ignore(std::string_view source) { weights_.Ignore(source); }

  // Plans a matrix of `outputs` rows of `inputs` values.
  void Matrix(std::string name, const std::string& source, std::int64_t inputs,
              std::int64_t outputs, PlanOptions options = {});
  // Plans one tensor of rank 3 from a matrix for each expert.
  void Stack(std::string name, const std::vector<std::string>& sources, std::int64_t inputs,
             std::int64_t outputs);
  void Vector(std::string name, const std::string& source, std::int64_t size,
              PlanOptions options = {});
  // Plans a vector whose values change places.
  void Permuted(std::string name, const std::string& source, std::int64_t size,
                const std::function<std::int64_t(std::int64_t)>& source_value);
  // Plans a tensor whose shape differs from that of its source.
  void Reshaped(std::string name, std::vector<std::int64_t> dims,
                const std::vector<std::string>& sources, const std::vector<std::int64_t>& shape,
                PlanOptions options = {});
  // Plans a vector of f32 with these values.
  void Values(std::string name, std::vector<float> values);

  // Return the rows and the columns of a matrix; 0 if it is missing or no matrix.
  std::int64_t RowsOf(std::string_view source) { return SizeOf(source, 0); }
  std::int64_t ColumnsOf(std::string_view source) { return SizeOf(source, 1); }

  // Returns whether two tensors have one type, one shape and the same bytes.
  bool AreEqual(std::string_view source, std::string_view other);

  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Returns the plans, or the first error; an error too if a tensor of the model has no place.
  Result<std::vector<TensorPlan>> Finish();

 private:
  std::int64_t SizeOf(std::string_view source, std::size_t dimension);

  HfWeights& weights_;
  Status status_;
  std::vector<TensorPlan> plans_;
};

}  // namespace kvcache
