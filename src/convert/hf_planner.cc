#include "convert/hf_planner.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "tensor/quantize.h"

namespace kvcache {
namespace {

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += StrCat(text.empty() ? "" : ", ", size);
  return "[" + text + "]";
}

}  // namespace

void HfPlanner::Matrix(std::string name, const std::string& source, std::int64_t inputs,
                       std::int64_t outputs, PlanOptions options) {
  const std::int64_t rows = options.source_rows > 0 ? options.source_rows : outputs;
  Reshaped(std::move(name), {inputs, outputs}, {source}, {rows, inputs}, std::move(options));
}

void HfPlanner::Stack(std::string name, const std::vector<std::string>& sources,
                      std::int64_t inputs, std::int64_t outputs) {
  const auto count = static_cast<std::int64_t>(sources.size());
  Reshaped(std::move(name), {inputs, outputs, count}, sources, {outputs, inputs});
}

void HfPlanner::Vector(std::string name, const std::string& source, std::int64_t size,
                       PlanOptions options) {
  options.f32 = true;
  Reshaped(std::move(name), {size}, {source}, {size}, std::move(options));
}

void HfPlanner::Reshaped(std::string name, std::vector<std::int64_t> dims,
                         const std::vector<std::string>& sources,
                         const std::vector<std::int64_t>& shape, PlanOptions options) {
  if (!status_.ok()) return;
  TensorPlan plan{.name = std::move(name),
                  .dims = std::move(dims),
                  .source_row = std::move(options.source_row),
                  .change = options.change};
  for (const std::string& source : sources) {
    auto tensor = weights_.Take(source);
    if (!tensor.ok()) return Fail(std::move(tensor).TakeStatus());
    if (tensor->data->shape != shape) {
      return Fail(Corrupt(StrCat(tensor->where, " has shape ", ShapeText(tensor->data->shape),
                                 "; config.json needs ", ShapeText(shape))));
    }
    if (!plan.parts.empty() && tensor->type != plan.source_type) {
      return Fail(Unsupported(StrCat(tensor->where, " is ", tensor->data->type,
                                     "; the other experts have another type")));
    }
    plan.source_type = tensor->type;
    plan.parts.push_back(tensor->data->bytes);
  }
  plan.type = options.f32 ? GgmlType::kF32 : plan.source_type;
  plans_.push_back(std::move(plan));
}

void HfPlanner::Permuted(std::string name, const std::string& source, std::int64_t size,
                         const std::function<std::int64_t(std::int64_t)>& source_value) {
  Reshaped(std::move(name), {size}, {source}, {size}, {.f32 = true});
  if (!status_.ok()) return;
  TensorPlan& plan = plans_.back();
  std::vector<float> values(static_cast<std::size_t>(size));
  Status read = Dequantize(*FindGgmlType(plan.source_type)->dtype, plan.parts[0], values);
  if (!read.ok()) return Fail(std::move(read).WithContext(source));
  for (std::int64_t i = 0; i < size; ++i) {
    plan.values.push_back(values[static_cast<std::size_t>(source_value(i))]);
  }
}

void HfPlanner::Values(std::string name, std::vector<float> values) {
  const auto size = static_cast<std::int64_t>(values.size());
  plans_.push_back({.name = std::move(name), .dims = {size}, .values = std::move(values)});
}

std::int64_t HfPlanner::SizeOf(std::string_view source, std::size_t dimension) {
  if (!weights_.Has(source)) return 0;
  const auto tensor = weights_.Take(source);
  return tensor.ok() && tensor->data->shape.size() == 2 ? tensor->data->shape[dimension] : 0;
}

bool HfPlanner::AreEqual(std::string_view source, std::string_view other) {
  const auto a = weights_.Take(source);
  const auto b = weights_.Take(other);
  return a.ok() && b.ok() && a->type == b->type && a->data->shape == b->data->shape &&
         std::ranges::equal(a->data->bytes, b->data->bytes);
}

Result<std::vector<TensorPlan>> HfPlanner::Finish() {
  KVCACHE_RETURN_IF_ERROR(std::move(status_));
  KVCACHE_RETURN_IF_ERROR(weights_.CheckAllUsed());
  return std::move(plans_);
}

}  // namespace kvcache
