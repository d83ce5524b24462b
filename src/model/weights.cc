#include "model/weights.h"

#include <utility>

namespace kvcache {
namespace {

std::string Shape(std::int64_t d0, std::int64_t d1) {
  return "[" + std::to_string(d0) + ", " + std::to_string(d1) + "]";
}

}  // namespace

bool WeightReader::Has(std::string_view name) const {
  return file_.FindTensor(name) != nullptr;
}

Result<TensorView> WeightReader::Take(const std::string& name, std::int64_t d0, std::int64_t d1) {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) {
    return Status(StatusCode::kCorrupt, "tensor '" + name + "' is missing");
  }
  const auto& dims = tensor->dims;
  if (dims[0] != d0 || dims[1] != d1 || dims[2] != 1 || dims[3] != 1) {
    return Status(StatusCode::kCorrupt, "tensor '" + name + "' has shape " +
                                            Shape(dims[0], dims[1] * dims[2] * dims[3]) +
                                            ", expected " + Shape(d0, d1));
  }
  used_.insert(name);
  return tensor->View();
}

Result<std::unique_ptr<LinearWeight>> WeightReader::Matrix(const std::string& name,
                                                           std::int64_t inputs,
                                                           std::int64_t outputs) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, Take(name, inputs, outputs));
  auto weight = backend_.MakeLinear(view);
  if (!weight.ok()) return std::move(weight).TakeStatus().WithContext("tensor '" + name + "'");
  const std::size_t owned = (*weight)->owned_bytes();
  if (owned > 0) file_.Drop(*file_.FindTensor(name));
  owned_bytes_ += owned;
  return weight;
}

Result<TensorView> WeightReader::Table(const std::string& name, std::int64_t inputs,
                                       std::int64_t outputs) {
  return Take(name, inputs, outputs);
}

Result<TensorView> WeightReader::Vector(const std::string& name, std::int64_t length) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, Take(name, length, 1));
  if (view.dtype != DType::kF32) {
    return Status(StatusCode::kUnsupported, "tensor '" + name + "' has type " +
                                                std::string(InfoOf(view.dtype).name) +
                                                ", expected f32");
  }
  return view;
}

Status WeightReader::CheckAllUsed() const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_.find(tensor.name) == used_.end()) {
      return {StatusCode::kUnsupported, "tensor '" + std::string(tensor.name) +
                                            "' is not part of this architecture as known here"};
    }
  }
  return Status::Ok();
}

}  // namespace kvcache
