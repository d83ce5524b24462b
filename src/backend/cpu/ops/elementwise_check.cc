#include "backend/cpu/ops/elementwise_check.h"

#include <string>

namespace kvcache::cpu {
namespace {

Status Invalid(std::string_view operation, const std::string& message) {
  return Status(StatusCode::kInvalidArgument, std::string(operation) + ": " + message);
}

std::string Describe(const TensorView& view) {
  std::string text = std::string(InfoOf(view.dtype).name) + " [";
  for (int i = 0; i < TensorView::kMaxRank; ++i) {
    if (i >= 2 && view.dims[i] == 1) break;
    text += (i == 0 ? "" : ", ") + std::to_string(view.dims[i]);
  }
  return text + "]";
}

bool IsDenseF32(const TensorView& view) {
  if (view.dtype != DType::kF32) return false;
  std::int64_t stride = 4;
  for (int i = 0; i < TensorView::kMaxRank; ++i) {
    if (view.dims[i] != 1 && view.stride_bytes[i] != stride) return false;
    stride *= view.dims[i];
  }
  return true;
}

bool IsRowsOf(const TensorView& view, DType dtype) {
  return view.dtype == dtype && view.stride_bytes[0] == InfoOf(dtype).block_bytes &&
         view.dims[2] == 1 && view.dims[3] == 1;
}

Status CheckTokens(const TensorView& table, std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < table.dims[1]) continue;
    return Invalid("embed", "token at index " + std::to_string(i) + " is " +
                                std::to_string(tokens[i]) + "; must be one of the table's " +
                                std::to_string(table.dims[1]) + " rows");
  }
  return Status::Ok();
}

bool IsWeightType(DType dtype) {
  return dtype != DType::kI8 && dtype != DType::kI32;
}

Status CheckRows(const char* what, const TensorView& x, const TensorView& y) {
  if (!IsRowsOf(x, DType::kF32) || !IsRowsOf(y, DType::kF32) || x.dims != y.dims) {
    return Invalid(what, "x is " + Describe(x) + " and y is " + Describe(y) +
                             "; must be f32 rows of one shape");
  }
  return Status::Ok();
}

}  // namespace

Status CheckEmbed(const TensorView& table, std::span<const std::int32_t> tokens,
                  const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckEmbedShapes(table, static_cast<std::int64_t>(tokens.size()), y));
  return CheckTokens(table, tokens);
}

Status CheckEmbedShapes(const TensorView& table, std::int64_t count, const TensorView& y) {
  if (!IsWeightType(table.dtype)) {
    return Status(StatusCode::kUnsupported, "embed: table is " +
                                                std::string(InfoOf(table.dtype).name) +
                                                "; must be a float type or a block type");
  }
  if (!IsRowsOf(table, table.dtype) || !IsRowsOf(y, DType::kF32) || table.dims[0] != y.dims[0] ||
      y.dims[1] != count || table.dims[0] % InfoOf(table.dtype).block_size != 0) {
    return Invalid("embed", "table is " + Describe(table) + " and y is " + Describe(y) + " for " +
                                std::to_string(count) +
                                " tokens; y must be f32 rows of the table's width, one per token");
  }
  return Status::Ok();
}

Status CheckRmsNorm(const TensorView& x, const TensorView& weight, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckRows("rms norm", x, y));
  if (!IsDenseF32(weight) || weight.dims[0] != x.dims[0] || weight.elements() != x.dims[0]) {
    return Invalid("rms norm", "weight is " + Describe(weight) +
                                   "; must be dense f32 with the width of x, " + Describe(x));
  }
  if (x.dims[0] < 1) {
    return Invalid("rms norm", "x is " + Describe(x) + "; rows must have at least 1 value");
  }
  return Status::Ok();
}

Status CheckCenter(const TensorView& x, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckRows("center", x, y));
  if (x.dims[0] < 1) {
    return Invalid("center", "x is " + Describe(x) + "; rows must have at least 1 value");
  }
  return Status::Ok();
}

Status CheckSoftCap(const TensorView& x, float cap) {
  KVCACHE_RETURN_IF_ERROR(CheckDense("soft cap", x));
  if (!(cap > 0.0f)) {
    return Invalid("soft cap", "cap is " + std::to_string(cap) + "; must be positive");
  }
  return Status::Ok();
}

Status CheckAddBias(const TensorView& x, const TensorView& bias) {
  if (!IsRowsOf(x, DType::kF32) || !IsDenseF32(bias) || bias.elements() != x.dims[0]) {
    return Invalid("add bias", "bias is " + Describe(bias) + " and x is " + Describe(x) +
                                   "; must be f32 of one width");
  }
  return Status::Ok();
}

Status CheckScaleColumns(const TensorView& x, std::size_t factors) {
  if (!IsRowsOf(x, DType::kF32) || static_cast<std::int64_t>(factors) != x.dims[1]) {
    return Invalid("scale columns", "there are " + std::to_string(factors) +
                                        " factors; must be one per column of x, " + Describe(x));
  }
  return Status::Ok();
}

Status CheckSameShape(std::string_view operation, const TensorView& a, const TensorView& b) {
  if (IsDenseF32(a) && IsDenseF32(b) && a.dims == b.dims) return Status::Ok();
  return Invalid(operation, "tensors are " + Describe(a) + " and " + Describe(b) +
                                "; must be dense f32 of one shape");
}

Status CheckDense(std::string_view operation, const TensorView& x) {
  if (IsDenseF32(x)) return Status::Ok();
  return Invalid(operation, "tensor is " + Describe(x) + "; must be dense f32");
}

bool MultipliesColumns(const TensorView& x, const TensorView& y) {
  return y.dims[0] == 1 && x.dims[0] != 1 && IsDenseF32(y);
}

}  // namespace kvcache::cpu
