#include "backend/cpu/ops/elementwise.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "backend/cpu/ops/elementwise_kernels.h"

namespace kvcache::cpu {
namespace {

// Values per task: some microseconds of work.
constexpr std::int64_t kTaskValues = 16'384;
constexpr std::int64_t kExpTaskValues = 4'096;  // for operations with an exponential per value

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

float* Row(const TensorView& view, std::int64_t row) {
  return reinterpret_cast<float*>(view.data + row * view.stride_bytes[1]);
}

// Runs body(begin, end) for parts of [0, count), each about `per_task` long.
template <typename Body>
void ForParts(ThreadPool& pool, std::int64_t count, std::int64_t per_task, const Body& body) {
  const std::int64_t size = std::max<std::int64_t>(1, per_task);
  pool.ParallelFor((count + size - 1) / size, [&](std::int64_t task, int) {
    body(task * size, std::min(count, (task + 1) * size));
  });
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

Status Embed(ThreadPool& pool, const TensorView& table, std::span<const std::int32_t> tokens,
             const TensorView& y) {
  if (!IsWeightType(table.dtype)) {
    return Status(StatusCode::kUnsupported, "embed: table is " +
                                                std::string(InfoOf(table.dtype).name) +
                                                "; must be a float type or a block type");
  }
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (!IsRowsOf(table, table.dtype) || !IsRowsOf(y, DType::kF32) || table.dims[0] != y.dims[0] ||
      y.dims[1] != count || table.dims[0] % InfoOf(table.dtype).block_size != 0) {
    return Invalid("embed", "table is " + Describe(table) + " and y is " + Describe(y) + " for " +
                                std::to_string(count) +
                                " tokens; y must be f32 rows of the table's width, one per token");
  }
  KVCACHE_RETURN_IF_ERROR(CheckTokens(table, tokens));
  ForParts(pool, count, kTaskValues / std::max<std::int64_t>(1, y.dims[0]),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               const std::int64_t row = tokens[static_cast<std::size_t>(i)];
               kernel::WidenRow(table.data + row * table.stride_bytes[1], table.dtype, y.dims[0],
                                Row(y, i));
             }
           });
  return Status::Ok();
}

Status Center(ThreadPool& pool, const TensorView& x, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckRows("center", x, y));
  if (x.dims[0] < 1) {
    return Invalid("center", "x is " + Describe(x) + "; rows must have at least 1 value");
  }
  ForParts(pool, x.dims[1], kTaskValues / x.dims[0], [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) kernel::CenterRow(Row(x, i), x.dims[0], Row(y, i));
  });
  return Status::Ok();
}

Status Xielu(ThreadPool& pool, const TensorView& x, const XieluParams& params) {
  KVCACHE_RETURN_IF_ERROR(CheckSameShape("xielu", x, x));
  ForParts(pool, x.elements(), kExpTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::Xielu(x.as<float>() + begin, end - begin, params);
  });
  return Status::Ok();
}

Status RmsNorm(ThreadPool& pool, const TensorView& x, const TensorView& weight, float epsilon,
               const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckRows("rms norm", x, y));
  if (!IsDenseF32(weight) || weight.dims[0] != x.dims[0] || weight.elements() != x.dims[0]) {
    return Invalid("rms norm", "weight is " + Describe(weight) +
                                   "; must be dense f32 with the width of x, " + Describe(x));
  }
  if (x.dims[0] < 1) {
    return Invalid("rms norm", "x is " + Describe(x) + "; rows must have at least 1 value");
  }
  ForParts(pool, x.dims[1], kTaskValues / x.dims[0], [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      kernel::NormalizeRow(Row(x, i), weight.as<const float>(), epsilon, x.dims[0], Row(y, i));
    }
  });
  return Status::Ok();
}

Status Gate(ThreadPool& pool, const TensorView& gate, const TensorView& up, Activation activation) {
  KVCACHE_RETURN_IF_ERROR(CheckSameShape("gate", gate, up));
  ForParts(pool, gate.elements(), kExpTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::Gate(gate.as<float>() + begin, up.as<const float>() + begin, end - begin, activation);
  });
  return Status::Ok();
}

Status GateClamped(ThreadPool& pool, const TensorView& gate, const TensorView& up, float alpha,
                   float limit) {
  KVCACHE_RETURN_IF_ERROR(CheckSameShape("gate", gate, up));
  ForParts(pool, gate.elements(), kExpTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::GateClamped(gate.as<float>() + begin, up.as<const float>() + begin, end - begin, alpha,
                        limit);
  });
  return Status::Ok();
}

Status Activate(ThreadPool& pool, const TensorView& x, Activation activation) {
  KVCACHE_RETURN_IF_ERROR(CheckDense("activate", x));
  ForParts(pool, x.elements(), kExpTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::Activate(x.as<float>() + begin, end - begin, activation);
  });
  return Status::Ok();
}

Status Scale(ThreadPool& pool, const TensorView& x, float factor) {
  KVCACHE_RETURN_IF_ERROR(CheckDense("scale", x));
  ForParts(pool, x.elements(), kTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::Scale(x.as<const float>() + begin, factor, end - begin, x.as<float>() + begin);
  });
  return Status::Ok();
}

Status SoftCap(ThreadPool& pool, const TensorView& x, float cap) {
  KVCACHE_RETURN_IF_ERROR(CheckDense("soft cap", x));
  if (!(cap > 0.0f)) {
    return Invalid("soft cap", "cap is " + std::to_string(cap) + "; must be positive");
  }
  ForParts(pool, x.elements(), kExpTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::SoftCap(x.as<float>() + begin, end - begin, cap);
  });
  return Status::Ok();
}

Status Add(ThreadPool& pool, const TensorView& x, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckSameShape("add", x, y));
  ForParts(pool, x.elements(), kTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::Add(x.as<float>() + begin, y.as<const float>() + begin, end - begin);
  });
  return Status::Ok();
}

Status Multiply(ThreadPool& pool, const TensorView& x, const TensorView& y) {
  if (y.dims[0] == 1 && x.dims[0] != 1 && IsDenseF32(y)) {
    return ScaleColumns(pool, x, {y.as<const float>(), static_cast<std::size_t>(y.elements())});
  }
  KVCACHE_RETURN_IF_ERROR(CheckSameShape("multiply", x, y));
  ForParts(pool, x.elements(), kTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::Multiply(x.as<float>() + begin, y.as<const float>() + begin, end - begin);
  });
  return Status::Ok();
}

Status AddBias(ThreadPool& pool, const TensorView& x, const TensorView& bias) {
  if (!IsRowsOf(x, DType::kF32) || !IsDenseF32(bias) || bias.elements() != x.dims[0]) {
    return Invalid("add bias", "bias is " + Describe(bias) + " and x is " + Describe(x) +
                                   "; must be f32 of one width");
  }
  ForParts(pool, x.dims[1], kTaskValues / std::max<std::int64_t>(1, x.dims[0]),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               kernel::Add(Row(x, i), bias.as<const float>(), x.dims[0]);
             }
           });
  return Status::Ok();
}

Status ScaleColumns(ThreadPool& pool, const TensorView& x, std::span<const float> factors) {
  if (!IsRowsOf(x, DType::kF32) || static_cast<std::int64_t>(factors.size()) != x.dims[1]) {
    return Invalid("scale columns", "there are " + std::to_string(factors.size()) +
                                        " factors; must be one per column of x, " + Describe(x));
  }
  ForParts(pool, x.dims[1], kTaskValues / std::max<std::int64_t>(1, x.dims[0]),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               kernel::Scale(Row(x, i), factors[static_cast<std::size_t>(i)], x.dims[0], Row(x, i));
             }
           });
  return Status::Ok();
}

}  // namespace kvcache::cpu
