// Takes tensors from a model file by name and checks their shape and type. It records the tensors
// that were taken: a tensor that no code takes is an error, and never silently a wrong model.
//
// Errors name the tensor: kCorrupt if it is missing or has another shape, kUnsupported for a type
// that is not supported, kOutOfMemory. Thread safety: one thread at a time.
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
#include <utility>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/load/key_reader.h"
#include "model/load/placed_tensors.h"
#include "model/load/spellings.h"

namespace kvcache {

// y = scale · W x + b. The bias is optional.
struct Projection {
  std::unique_ptr<LinearWeight> weight;
  float scale = 1.0f;
  std::optional<TensorView> bias;  // [outputs]
};

enum class NormKind : std::uint8_t {
  kRms,    // y = x / rms(x) × weight
  kLayer,  // the same for x - mean(x)
};

struct Norm {
  TensorView weight;  // [size]
  float epsilon = 0.0f;
  NormKind kind = NormKind::kRms;
  std::optional<TensorView> bias{};  // [size], added at the end
};

enum class Bias : std::uint8_t { kNone, kRequired, kIfPresent };

// A matrix that a model multiplies by, or a stack of them: what an adapter's pair for a tensor is bound to.
struct LinearSite {
  const LinearWeight* weight = nullptr;
  std::string tensor;            // its name in the file
  std::int64_t first_row = 0;    // of the tensor, in each matrix of a stack
  std::int64_t tensor_rows = 0;  // of each matrix in the file
  bool is_pairs = false;         // each matrix of the tensor is two of `weight`
};

// The prefix of a layer's tensors: "blk.7.".
std::string LayerPrefix(int layer);

class WeightReader {
 public:
  // Names are those here; the file may write others (spellings.h).
  WeightReader(const GgufFile& file, Backend& backend);

  // Says which layer the next tensors belong to (Backend::EnterLayer). At first it is what comes before the layers.
  Status EnterLayer(int layer);

  bool Has(std::string_view name) const;

  // Returns a matrix of `outputs` rows of `inputs` values, ready for Backend::Linear. If the
  // backend copies it into its own layout, the file's pages are released to the system.
  Result<std::unique_ptr<LinearWeight>> Matrix(const std::string& name, std::int64_t inputs,
                                               std::int64_t outputs);

  // Returns a stack of `matrices` such matrices, a tensor of rank 3 in the file: a layer's experts.
  Result<std::unique_ptr<LinearWeight>> Stack(const std::string& name, std::int64_t inputs,
                                              std::int64_t outputs, std::int64_t matrices);

  // Takes a stack of `pairs` matrices of 2 · `outputs` rows as one of twice as many matrices of `outputs`.
  Result<std::unique_ptr<LinearWeight>> StackOfPairs(const std::string& name, std::int64_t inputs,
                                                     std::int64_t outputs, std::int64_t pairs);

  // Returns the factor on a matrix's product, NAME.scale, which files of NVFP4 have; 1 without it. The factor of
  // the inputs, NAME.input_scale, serves programs that quantise inputs to NVFP4 as well; it is ignored.
  Result<float> ScaleOf(const std::string& name);

  // The same for a stack: [matrices] factors; empty without them.
  Result<std::span<const float>> ScalesOf(const std::string& name, std::int64_t matrices);

  // Takes NAME.weight, NAME.bias according to `bias`, and the factor that ScaleOf returns.
  Result<Projection> Linear(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                            Bias bias = Bias::kNone);

  // Takes NAME.weight, whose rows are several matrices one after another, with `parts` outputs
  // each, and NAME.bias according to `bias`. Returns a projection per part.
  Result<std::vector<Projection>> LinearParts(const std::string& name, std::int64_t inputs,
                                              std::initializer_list<std::int64_t> parts,
                                              Bias bias = Bias::kNone);

  // Takes NAME.weight, or NAME if that alone is in the file: a norm's [size] weights.
  Result<Norm> RmsNorm(const std::string& name, std::int64_t size, float epsilon);

  // Takes NAME.weight and, according to `bias`, NAME.bias: a layer norm's.
  Result<Norm> LayerNorm(const std::string& name, std::int64_t size, float epsilon, Bias bias);

  // Returns the number of rows of a matrix; 0 if the file lacks it.
  std::int64_t Rows(std::string_view name) const;

  // Returns the matrix in the backend's memory, for Backend::Embed. Checks that Embed supports its type.
  Result<TensorView> Table(const std::string& name, std::int64_t inputs, std::int64_t outputs);

  // Returns a matrix of f32 values in the backend's memory.
  Result<TensorView> FloatTable(const std::string& name, std::int64_t inputs, std::int64_t outputs);

  // Returns a vector of f32 values in the backend's memory.
  Result<TensorView> Vector(const std::string& name, std::int64_t length);

  // Returns a vector's f32 values, in host memory.
  Result<std::span<const float>> Floats(const std::string& name, std::int64_t length);

  // The same for a matrix.
  Result<std::span<const float>> FloatRows(const std::string& name, std::int64_t inputs,
                                           std::int64_t outputs);

  // Floats; empty if the file lacks the tensor.
  Result<std::span<const float>> FloatsIfPresent(const std::string& name, std::int64_t length);

  // Returns a vector's i64 values, however many they are.
  Result<std::vector<std::int64_t>> Integers(const std::string& name);

  // Returns the values of a matrix of f32, f16 or bf16, row by row, as f32 in host memory.
  Result<std::vector<float>> Values(const std::string& name, std::int64_t inputs,
                                    std::int64_t outputs);

  // Marks the tensor as taken: the family does not use it.
  void Ignore(const std::string& name);
  // Marks all tensors whose names begin with `prefix`.
  void IgnoreAll(std::string_view prefix);

  // Returns kUnsupported with the first tensor of the file that no call above has taken.
  Status CheckAllUsed() const;

  // The same for the tensors whose names begin with `prefix`.
  Status CheckAllUsed(std::string_view prefix) const;

  // The bytes of matrices that the backend has copied.
  std::size_t owned_bytes() const { return owned_bytes_; }

  // Returns what views refer to in the backend's memory: it must live as long as they do.
  PlacedTensors TakePlaced() { return std::move(placed_); }

  // Returns all matrices that were taken, without those that ForgetSite named.
  std::vector<LinearSite> TakeSites() { return std::move(sites_); }
  // The family multiplies by the tensor otherwise than with Pass::Linear, so adapters cannot change it.
  void ForgetSite(std::string_view tensor);

 private:
  Result<std::unique_ptr<LinearWeight>> Make(const std::string& name, const TensorView& view);
  // Returns whether the projection has a bias.
  bool Takes(Bias bias, const std::string& name) const;
  Result<TensorView> Take(const std::string& name, std::int64_t d0, std::int64_t d1,
                          std::int64_t d2 = 1);
  // Takes a matrix of f32 values, in the file's memory.
  Result<TensorView> TakeFloats(const std::string& name, std::int64_t inputs, std::int64_t outputs);

  // Returns the tensor, or null.
  const GgufTensor* Find(std::string_view name) const;

  const GgufFile& file_;
  Backend& backend_;
  const Spelling* spelling_ = nullptr;  // null: the file has the names here
  std::set<std::string, std::less<>> used_;
  std::size_t owned_bytes_ = 0;
  std::vector<LinearSite> sites_;
  PlacedTensors placed_;
  int layer_ = Backend::kBeforeLayers;
};

// Marks the keys and tensors of vision and audio encoders as known. Files of multimodal models may
// contain them; text needs none.
void IgnoreVisionAndAudio(KeyReader& keys, WeightReader& weights);

}  // namespace kvcache
