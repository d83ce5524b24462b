#include "vision/tower_weights.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "tensor/quantize.h"

namespace kvcache::vision {
namespace {

// Returns a matrix of any type as f32, row by row.
Result<std::vector<float>> TakeValues(TowerSource& source, const std::string& name,
                                      std::int64_t inputs, std::int64_t outputs) {
  const GgufTensor* const tensor = source.file.FindTensor(name);
  if (tensor == nullptr) return Corrupt(StrCat("tensor '", name, "' is missing"));
  const auto& dims = tensor->dims;
  if (dims[0] != inputs || dims[1] != outputs || tensor->elements() != inputs * outputs) {
    return Corrupt(StrCat("tensor '", name, "' has shape [", dims[0], ", ", dims[1], "]; must be [",
                          inputs, ", ", outputs, "]"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, tensor->View());
  std::vector<float> values(static_cast<std::size_t>(inputs * outputs));
  KVCACHE_RETURN_IF_ERROR(
      Dequantize(view.dtype, tensor->bytes, values).WithContext("tensor '" + name + "'"));
  source.reader.Ignore(name);  // it is taken
  return values;
}

Result<OwnMatrix> Made(TowerSource& source, const std::string& name, OwnMatrix matrix,
                       std::int64_t inputs, std::int64_t outputs) {
  auto weight = source.backend.MakeLinear(TensorView::Dense(
      reinterpret_cast<std::byte*>(matrix.values.data()), DType::kF32, inputs, outputs));
  if (!weight.ok()) return std::move(weight).TakeStatus().WithContext("tensor '" + name + "'");
  matrix.weight = std::move(weight).value();
  return matrix;
}

}  // namespace

Result<std::unique_ptr<LinearWeight>> TakeKernel(TowerSource& source, const std::string& name,
                                                 std::int64_t inputs, std::int64_t outputs) {
  const GgufTensor* const tensor = source.file.FindTensor(name);
  if (tensor == nullptr) return Corrupt(StrCat("tensor '", name, "' is missing"));
  const auto& dims = tensor->dims;
  if (dims[0] * dims[1] * dims[2] != inputs || dims[0] != dims[1] || dims[2] != 3 ||
      dims[3] != outputs) {
    return Corrupt(StrCat("tensor '", name, "' has shape [", dims[0], ", ", dims[1], ", ", dims[2],
                          ", ", dims[3], "]; must be the kernel of ", outputs, " outputs over ",
                          inputs, " values of a patch"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, tensor->View());
  auto weight =
      source.backend.MakeLinear(TensorView::Dense(view.data, view.dtype, inputs, outputs));
  if (!weight.ok()) return std::move(weight).TakeStatus().WithContext("tensor '" + name + "'");
  source.reader.Ignore(name);  // it is taken
  return weight;
}

Result<OwnMatrix> TakeTransposed(TowerSource& source, const std::string& name, std::int64_t inputs,
                                 std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> stored,
                           TakeValues(source, name, outputs, inputs));
  OwnMatrix matrix;
  matrix.values.resize(stored.size());
  const auto rows = static_cast<std::size_t>(outputs), columns = static_cast<std::size_t>(inputs);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      matrix.values[i * columns + j] = stored[j * rows + i];
    }
  }
  return Made(source, name, std::move(matrix), inputs, outputs);
}

Result<OwnMatrix> TakeMerger(TowerSource& source, const std::string& name, std::int64_t width,
                             std::int64_t patches, std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> stored,
                           TakeValues(source, name, width * patches, outputs));
  OwnMatrix matrix;
  matrix.values.resize(stored.size());
  const auto count = static_cast<std::size_t>(patches), size = static_cast<std::size_t>(width);
  for (std::size_t row = 0; row < stored.size(); row += size * count) {
    for (std::size_t j = 0; j < size * count; ++j) {
      matrix.values[row + j] = stored[row + j % size * count + j / size];
    }
  }
  return Made(source, name, std::move(matrix), width * patches, outputs);
}

}  // namespace kvcache::vision
