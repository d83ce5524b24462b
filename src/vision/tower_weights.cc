#include "vision/tower_weights.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::vision {

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
                           source.reader.Values(name, outputs, inputs));
  OwnMatrix matrix;
  matrix.values.resize(stored.size());
  const auto rows = static_cast<std::size_t>(outputs), columns = static_cast<std::size_t>(inputs);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      matrix.values[i * columns + j] = stored[j * rows + i];
    }
  }
  auto weight = source.backend.MakeLinear(TensorView::Dense(
      reinterpret_cast<std::byte*>(matrix.values.data()), DType::kF32, inputs, outputs));
  if (!weight.ok()) return std::move(weight).TakeStatus().WithContext("tensor '" + name + "'");
  matrix.weight = std::move(weight).value();
  return matrix;
}

}  // namespace kvcache::vision
