#include "backend/cpu/linear/linear_check.h"

#include <string>
#include <utility>

namespace kvcache::cpu {
namespace {

std::string SizeText(std::int64_t a, std::int64_t b) {
  return "[" + std::to_string(a) + ", " + std::to_string(b) + "]";
}

Status InvalidCall(std::string message) {
  return Status(StatusCode::kInvalidArgument, "linear: " + std::move(message));
}

bool IsDenseF32Matrix(const TensorView& view) {
  return view.dtype == DType::kF32 && view.dims[2] == 1 && view.dims[3] == 1 &&
         view.stride_bytes[0] == 4 &&
         (view.dims[1] == 1 || view.stride_bytes[1] == 4 * view.dims[0]);
}

Status CheckOutput(const TensorView& x, const LinearOutput& output,
                   bool (*is_own)(const LinearWeight* weight)) {
  if (!is_own(output.weight))
    return InvalidCall("a weight was not made by this backend's MakeLinear");
  const LinearWeight* const weight = output.weight;
  // Builds its text only for an error, since that allocates.
  const auto invalid = [&](const std::string& what) {
    return InvalidCall(what + ": weight " + SizeText(weight->inputs(), weight->outputs()) + ", x " +
                       SizeText(x.dims[0], x.dims[1]) + ", y " +
                       SizeText(output.y.dims[0], output.y.dims[1]));
  };
  if (weight->inputs() != x.dims[0]) return invalid("inputs of weight and x differ");
  if (weight->outputs() != output.y.dims[0]) return invalid("outputs of weight and y differ");
  if (output.y.dims[1] != x.dims[1]) return invalid("batches of x and y differ");
  if (!IsDenseF32Matrix(output.y)) return invalid("y is not a dense f32 matrix");
  if (output.matrix < 0 || output.matrix >= weight->matrices()) {
    return invalid("matrix " + std::to_string(output.matrix) + " of a stack of " +
                   std::to_string(weight->matrices()));
  }
  return Status::Ok();
}

}  // namespace

Status CheckLinearGroups(std::span<const LinearGroup> groups,
                         bool (*is_own)(const LinearWeight* weight)) {
  for (const LinearGroup& group : groups) {
    const TensorView& x = group.x;
    if (!IsDenseF32Matrix(x)) {
      return InvalidCall("x " + SizeText(x.dims[0], x.dims[1]) + " is not a dense f32 matrix");
    }
    for (const LinearOutput& output : group.outputs) {
      KVCACHE_RETURN_IF_ERROR(CheckOutput(x, output, is_own));
    }
  }
  return Status::Ok();
}

}  // namespace kvcache::cpu
