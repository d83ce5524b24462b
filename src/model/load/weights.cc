#include "model/load/weights.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "tensor/quantize.h"

namespace kvcache {
namespace {

std::string Shape(std::int64_t d0, std::int64_t d1, std::int64_t d2) {
  return d2 == 1 ? StrCat("[", d0, ", ", d1, "]") : StrCat("[", d0, ", ", d1, ", ", d2, "]");
}

}  // namespace

std::string LayerPrefix(int layer) {
  return StrCat("blk.", layer, ".");
}

WeightReader::WeightReader(const GgufFile& file, Backend& backend)
    : file_(file), backend_(backend) {
  const auto architecture = file.GetString("general.architecture");
  if (architecture.ok()) spelling_ = FindSpelling(*architecture);
}

const GgufTensor* WeightReader::Find(std::string_view name) const {
  const GgufTensor* const tensor = file_.FindTensor(name);
  if (tensor != nullptr || spelling_ == nullptr) return tensor;
  const std::string other = OtherTensorName(spelling_, name);
  return other.empty() ? nullptr : file_.FindTensor(other);
}

Status WeightReader::EnterLayer(int layer) {
  layer_ = layer;
  return backend_.EnterLayer(layer, TensorView{});
}

bool WeightReader::Has(std::string_view name) const {
  return Find(name) != nullptr;
}

void WeightReader::Ignore(const std::string& name) {
  const GgufTensor* const tensor = Find(name);
  if (tensor != nullptr) used_.emplace(tensor->name);
}

Result<TensorView> WeightReader::Take(const std::string& name, std::int64_t d0, std::int64_t d1,
                                      std::int64_t d2) {
  const GgufTensor* const tensor = Find(name);
  if (tensor == nullptr) {
    return Corrupt(StrCat("tensor '", name, "' is missing"));
  }
  const auto& dims = tensor->dims;
  if (dims[0] != d0 || dims[1] != d1 || dims[2] != d2 || dims[3] != 1) {
    return Corrupt(StrCat("tensor '", name, "' has shape ",
                          Shape(dims[0], dims[1], dims[2] * dims[3]), "; must be ",
                          Shape(d0, d1, d2)));
  }
  used_.emplace(tensor->name);
  return tensor->View();
}

bool WeightReader::Takes(Bias bias, const std::string& name) const {
  return bias == Bias::kRequired || (bias == Bias::kIfPresent && Has(name + ".bias"));
}

Result<std::unique_ptr<LinearWeight>> WeightReader::Stack(const std::string& name,
                                                          std::int64_t inputs, std::int64_t outputs,
                                                          std::int64_t matrices) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, Take(name, inputs, outputs, matrices));
  KVCACHE_ASSIGN_OR_RETURN(auto weight, Make(name, view));
  sites_.push_back({.weight = weight.get(), .tensor = name, .tensor_rows = outputs});
  return weight;
}

Result<std::unique_ptr<LinearWeight>> WeightReader::StackOfPairs(const std::string& name,
                                                                 std::int64_t inputs,
                                                                 std::int64_t outputs,
                                                                 std::int64_t pairs) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, Take(name, inputs, 2 * outputs, pairs));
  KVCACHE_ASSIGN_OR_RETURN(auto weight, Make(name, TensorView::Dense(view.data, view.dtype, inputs,
                                                                     outputs, 2 * pairs)));
  sites_.push_back(
      {.weight = weight.get(), .tensor = name, .tensor_rows = 2 * outputs, .is_pairs = true});
  return weight;
}

Result<std::unique_ptr<LinearWeight>> WeightReader::Make(const std::string& name,
                                                         const TensorView& view) {
  auto weight = backend_.MakeLinear(view);
  if (!weight.ok()) return std::move(weight).TakeStatus().WithContext("tensor '" + name + "'");
  const std::size_t owned = (*weight)->owned_bytes();
  if (owned > 0) file_.Drop(*Find(name));
  owned_bytes_ += owned;
  return weight;
}

Result<std::unique_ptr<LinearWeight>> WeightReader::Matrix(const std::string& name,
                                                           std::int64_t inputs,
                                                           std::int64_t outputs) {
  return Stack(name, inputs, outputs, 1);
}

Result<Projection> WeightReader::Linear(const std::string& name, std::int64_t inputs,
                                        std::int64_t outputs, Bias bias) {
  Projection projection;
  KVCACHE_ASSIGN_OR_RETURN(projection.weight, Matrix(name + ".weight", inputs, outputs));
  KVCACHE_ASSIGN_OR_RETURN(projection.scale, ScaleOf(name));
  if (Takes(bias, name)) {
    KVCACHE_ASSIGN_OR_RETURN(projection.bias, Vector(name + ".bias", outputs));
  }
  return projection;
}

Result<float> WeightReader::ScaleOf(const std::string& name) {
  Ignore(name + ".input_scale");
  const GgufTensor* const tensor = Find(name + ".scale");
  // Tensors of other sizes are something else: gemma4's routers have one. The embedding's factor would apply to
  // rows too; no file has it.
  if (tensor == nullptr || tensor->elements() != 1 || name == "token_embd") return 1.0f;
  KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> scale, Floats(name + ".scale", 1));
  return scale[0];
}

Result<std::span<const float>> WeightReader::ScalesOf(const std::string& name,
                                                      std::int64_t matrices) {
  Ignore(name + ".input_scale");
  return FloatsIfPresent(name + ".scale", matrices);
}

Result<std::vector<Projection>> WeightReader::LinearParts(const std::string& name,
                                                          std::int64_t inputs,
                                                          std::initializer_list<std::int64_t> parts,
                                                          Bias bias) {
  const std::string whole = name + ".weight";
  const std::int64_t outputs = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  KVCACHE_ASSIGN_OR_RETURN(TensorView rows, Take(whole, inputs, outputs));
  std::optional<TensorView> biases;
  if (Takes(bias, name)) {
    KVCACHE_ASSIGN_OR_RETURN(biases, Vector(name + ".bias", outputs));
  }
  KVCACHE_ASSIGN_OR_RETURN(const float scale, ScaleOf(name));
  std::vector<Projection> projections;
  std::size_t owned = 0;
  std::int64_t first = 0;
  for (const std::int64_t part : parts) {
    rows.dims[1] = part;
    auto weight = backend_.MakeLinear(rows);
    if (!weight.ok()) return std::move(weight).TakeStatus().WithContext("tensor '" + whole + "'");
    owned += (*weight)->owned_bytes();
    projections.push_back({std::move(*weight), scale, std::nullopt});
    sites_.push_back({.weight = projections.back().weight.get(),
                      .tensor = whole,
                      .first_row = std::exchange(first, first + part),
                      .tensor_rows = outputs});
    rows.data += part * rows.stride_bytes[1];
    if (!biases.has_value()) continue;
    projections.back().bias = TensorView::Dense(biases->data, DType::kF32, part);
    biases->data += part * biases->stride_bytes[0];
  }
  if (owned > 0) file_.Drop(*Find(whole));
  owned_bytes_ += owned;
  return projections;
}

Result<Norm> WeightReader::RmsNorm(const std::string& name, std::int64_t size, float epsilon) {
  const bool bare = !Has(name + ".weight") && Has(name);  // as some files of falcon-h1 name them
  KVCACHE_ASSIGN_OR_RETURN(const TensorView weight, Vector(bare ? name : name + ".weight", size));
  return Norm{weight, epsilon};
}

Result<Norm> WeightReader::LayerNorm(const std::string& name, std::int64_t size, float epsilon,
                                     Bias bias) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView weight, Vector(name + ".weight", size));
  Norm norm{weight, epsilon, NormKind::kLayer, std::nullopt};
  if (Takes(bias, name)) {
    KVCACHE_ASSIGN_OR_RETURN(norm.bias, Vector(name + ".bias", size));
  }
  return norm;
}

std::int64_t WeightReader::Rows(std::string_view name) const {
  const GgufTensor* const tensor = file_.FindTensor(name);
  return tensor == nullptr ? 0 : tensor->dims[1];
}

Result<TensorView> WeightReader::Table(const std::string& name, std::int64_t inputs,
                                       std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(TensorView view, Take(name, inputs, outputs));
  // Looks up no rows. A type that the backend does not support fails here instead of in a pass.
  const TensorView none = TensorView::Dense(nullptr, DType::kF32, inputs, 0);
  KVCACHE_RETURN_IF_ERROR(backend_.Embed(view, {}, none).WithContext("tensor '" + name + "'"));
  return placed_.Place(backend_, layer_, view);
}

Result<TensorView> WeightReader::Vector(const std::string& name, std::int64_t length) {
  return FloatTable(name, length, 1);
}

Result<TensorView> WeightReader::FloatTable(const std::string& name, std::int64_t inputs,
                                            std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, TakeFloats(name, inputs, outputs));
  return placed_.Place(backend_, layer_, view);
}

Result<TensorView> WeightReader::TakeFloats(const std::string& name, std::int64_t inputs,
                                            std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, Take(name, inputs, outputs));
  if (view.dtype != DType::kF32) {
    return Unsupported(
        StrCat("tensor '", name, "' has type ", InfoOf(view.dtype).name, "; must be f32"));
  }
  return view;
}

Result<std::span<const float>> WeightReader::FloatsIfPresent(const std::string& name,
                                                             std::int64_t length) {
  return Has(name) ? Floats(name, length) : std::span<const float>();
}

Result<std::span<const float>> WeightReader::Floats(const std::string& name, std::int64_t length) {
  return FloatRows(name, length, 1);
}

Result<std::span<const float>> WeightReader::FloatRows(const std::string& name, std::int64_t inputs,
                                                       std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, TakeFloats(name, inputs, outputs));
  return std::span<const float>(view.as<const float>(), static_cast<std::size_t>(view.elements()));
}

Result<std::vector<float>> WeightReader::Values(const std::string& name, std::int64_t inputs,
                                                std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, Take(name, inputs, outputs));
  if (InfoOf(view.dtype).block_size > 1) {
    return Unsupported(StrCat("tensor '", name, "' has type ", InfoOf(view.dtype).name,
                              "; must be f32, f16 or bf16"));
  }
  std::vector<float> values(static_cast<std::size_t>(inputs * outputs));
  const auto bytes = static_cast<std::size_t>(BytesOf(view.dtype, view.elements()));
  KVCACHE_RETURN_IF_ERROR(Dequantize(view.dtype, {view.data, bytes}, values));
  return values;
}

Result<std::vector<std::int64_t>> WeightReader::Integers(const std::string& name) {
  const GgufTensor* const tensor = Find(name);
  if (tensor == nullptr) return Corrupt(StrCat("tensor '", name, "' is missing"));
  if (tensor->type->type != GgmlType::kI64) {
    return Unsupported(
        StrCat("tensor '", name, "' has type ", tensor->type->name, "; must be i64"));
  }
  const auto& dims = tensor->dims;
  if (dims[0] != tensor->elements()) {
    return Corrupt(StrCat("tensor '", name, "' has shape ",
                          Shape(dims[0], dims[1], dims[2] * dims[3]), "; must be a vector"));
  }
  used_.emplace(tensor->name);
  std::vector<std::int64_t> values(static_cast<std::size_t>(dims[0]));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

void WeightReader::ForgetSite(std::string_view tensor) {
  std::erase_if(sites_, [&](const LinearSite& site) { return site.tensor == tensor; });
}

void WeightReader::IgnoreAll(std::string_view prefix) {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (tensor.name.starts_with(prefix)) used_.emplace(tensor.name);
  }
}

Status WeightReader::CheckAllUsed() const {
  return CheckAllUsed("");
}

Status WeightReader::CheckAllUsed(std::string_view prefix) const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (tensor.name.starts_with(prefix) && used_.find(tensor.name) == used_.end()) {
      return Unsupported(
          StrCat("tensor '", tensor.name, "' is unknown: this architecture does not use it"));
    }
  }
  return Status::Ok();
}

void IgnoreVisionAndAudio(KeyReader& keys, WeightReader& weights) {
  for (const char* const prefix : {"vision.", "audio."}) keys.IgnoreAll(prefix);
  for (const char* const prefix : {"v.", "a.", "mm."}) weights.IgnoreAll(prefix);
}

}  // namespace kvcache
