// Takes tensors out of a model file by name, checking shape and type, and remembers which
// were asked for, so that a tensor that nobody uses is an error instead of a silently wrong
// model.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/load/key_reader.h"

namespace kvcache {

// y = W x + b; the bias may be missing.
struct Projection {
  std::unique_ptr<LinearWeight> weight;
  std::optional<TensorView> bias;  // [outputs]
};

// y = x / rms(x) × weight.
struct Norm {
  TensorView weight;  // [size]
  float epsilon = 0.0f;
};

enum class Bias : std::uint8_t { kNone, kRequired, kIfPresent };

// The prefix of a layer's tensors: "blk.7.".
std::string LayerPrefix(int layer);

class WeightReader {
 public:
  WeightReader(const GgufFile& file, Backend& backend) : file_(file), backend_(backend) {}

  bool Has(std::string_view name) const;

  // A matrix of `outputs` rows with `inputs` values, ready for Backend::Linear. Pages of the
  // file that were copied into the backend's own form are given back to the system.
  Result<std::unique_ptr<LinearWeight>> Matrix(const std::string& name, std::int64_t inputs,
                                               std::int64_t outputs);

  // A stack of `matrices` of them, of rank 3 in the file: a layer's experts.
  Result<std::unique_ptr<LinearWeight>> Stack(const std::string& name, std::int64_t inputs,
                                              std::int64_t outputs, std::int64_t matrices);

  // NAME.weight, and NAME.bias where `bias` wants one.
  Result<Projection> Linear(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                            Bias bias = Bias::kNone);

  // NAME.weight, whose rows are `parts` of so many outputs, one after another: a projection each.
  Result<std::vector<Projection>> LinearParts(const std::string& name, std::int64_t inputs,
                                              std::initializer_list<std::int64_t> parts);

  Result<Norm> RmsNorm(const std::string& name, std::int64_t size, float epsilon);

  // A view of the matrix in the file, for Backend::Embed, which serves its type.
  Result<TensorView> Table(const std::string& name, std::int64_t inputs, std::int64_t outputs);

  // A matrix of f32 values, where it lies in the file.
  Result<TensorView> FloatTable(const std::string& name, std::int64_t inputs, std::int64_t outputs);

  // A vector of f32 values, where it lies in the file.
  Result<TensorView> Vector(const std::string& name, std::int64_t length);

  // A vector's values, in host memory.
  Result<std::span<const float>> Floats(const std::string& name, std::int64_t length);

  // The same; empty if there is no such tensor.
  Result<std::span<const float>> FloatsIfPresent(const std::string& name, std::int64_t length);

  // The values of a table of f32, f16 or bf16, row by row, in host memory.
  Result<std::vector<float>> Values(const std::string& name, std::int64_t inputs,
                                    std::int64_t outputs);

  // The family does without this tensor.
  void Ignore(const std::string& name) { used_.insert(name); }
  // The same for all whose names begin so.
  void IgnoreAll(std::string_view prefix);

  // kUnsupported, naming the first tensor of the file that nothing above has taken.
  Status CheckAllUsed() const;

  std::size_t owned_bytes() const { return owned_bytes_; }

 private:
  Result<TensorView> Take(const std::string& name, std::int64_t d0, std::int64_t d1,
                          std::int64_t d2 = 1);

  const GgufFile& file_;
  Backend& backend_;
  std::set<std::string, std::less<>> used_;
  std::size_t owned_bytes_ = 0;
};

// Files of models that see and hear may hold the parts for that, too: what a text needs none of.
void IgnoreVisionAndAudio(KeyReader& keys, WeightReader& weights);

}  // namespace kvcache
