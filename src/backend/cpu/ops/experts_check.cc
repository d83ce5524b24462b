#include "backend/cpu/ops/experts_check.h"

#include <algorithm>
#include <string>

namespace kvcache::cpu {
namespace {

Status Invalid(const std::string& message) {
  return {StatusCode::kInvalidArgument, message};
}

std::string Size(const TensorView& view) {
  return "[" + std::to_string(view.dims[0]) + ", " + std::to_string(view.dims[1]) + "]";
}

bool IsColumns(const TensorView& view) {
  return view.dtype == DType::kF32 && view.stride_bytes[0] == 4 && view.dims[2] == 1 &&
         view.dims[3] == 1;
}

Status CheckScored(const RouterOptions& options, std::int64_t experts) {
  if (!IsScored(options)) return Status::Ok();
  if (experts > RouterOptions::kMaxScored) {
    return {StatusCode::kUnsupported, "route: " + std::to_string(experts) +
                                          " experts with a bias or groups; must be at most " +
                                          std::to_string(RouterOptions::kMaxScored)};
  }
  if (!options.selection_bias.empty() &&
      static_cast<std::int64_t>(options.selection_bias.size()) != experts) {
    return Invalid("route: selection_bias has " + std::to_string(options.selection_bias.size()) +
                   " values; must have one for each of " + std::to_string(experts) + " experts");
  }
  const std::int64_t size = options.groups > 0 ? experts / options.groups : 0;
  if (options.groups < 1 || experts % options.groups != 0 || options.groups_used < 1 ||
      options.groups_used > options.groups || options.group_best < 1 || options.group_best > size ||
      options.chosen > options.groups_used * size) {
    return Invalid("route: groups is " + std::to_string(options.groups) + ", groups_used is " +
                   std::to_string(options.groups_used) + ", group_best is " +
                   std::to_string(options.group_best) + ", chosen is " +
                   std::to_string(options.chosen) + "; groups must divide the " +
                   std::to_string(experts) +
                   " experts, and the used groups must have the chosen and the best experts");
  }
  return Status::Ok();
}

}  // namespace

bool IsScored(const RouterOptions& options) {
  return !options.selection_bias.empty() || options.groups > 1;
}

Status CheckRoute(const TensorView& logits, const RouterOptions& options, std::size_t experts,
                  std::size_t weights) {
  const auto count = static_cast<std::size_t>(std::max(options.chosen, 0));
  if (!IsColumns(logits) || options.chosen < 1 || options.chosen > logits.dims[0] ||
      experts != count * static_cast<std::size_t>(logits.dims[1]) || weights != experts) {
    return Invalid("route: chosen is " + std::to_string(options.chosen) + ", logits are " +
                   Size(logits) + ", experts has " + std::to_string(experts) +
                   " entries and weights has " + std::to_string(weights) +
                   "; chosen must be at least 1 and at most the logits of a token, and each output "
                   "must have that many entries per token");
  }
  return CheckScored(options, logits.dims[0]);
}

Status CheckCombine(const TensorView& y, std::span<const std::int32_t> columns,
                    std::span<const float> weights, const TensorView& out) {
  if (!IsColumns(y) || !IsColumns(out) || y.dims[0] != out.dims[0]) {
    return Invalid("combine: y is " + Size(y) + " and out is " + Size(out) +
                   "; must be f32 columns of one width");
  }
  const auto count = static_cast<std::int64_t>(columns.size());
  if (weights.size() != columns.size() || out.dims[1] < 1 || count < 1 ||
      count % out.dims[1] != 0) {
    return Invalid("combine: there are " + std::to_string(count) + " columns and " +
                   std::to_string(weights.size()) + " weights, and out is " + Size(out) +
                   "; must be equally many, a multiple of the columns of out");
  }
  for (const std::int32_t column : columns) {
    if (column < 0 || column >= y.dims[1]) {
      return Invalid("combine: column is " + std::to_string(column) + "; must be one of y, " +
                     Size(y));
    }
  }
  return Status::Ok();
}

}  // namespace kvcache::cpu
