#include "backend/cpu/ops/elementwise.h"

#include <algorithm>

#include "backend/cpu/ops/elementwise_check.h"
#include "backend/cpu/ops/elementwise_kernels.h"

namespace kvcache::cpu {
namespace {

// Values per task: some microseconds of work.
constexpr std::int64_t kTaskValues = 16'384;
constexpr std::int64_t kExpTaskValues = 4'096;  // for operations with an exponential per value

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

}  // namespace

Status Embed(ThreadPool& pool, const TensorView& table, std::span<const std::int32_t> tokens,
             const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckEmbed(table, tokens, y));
  const auto count = static_cast<std::int64_t>(tokens.size());
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
  KVCACHE_RETURN_IF_ERROR(CheckCenter(x, y));
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
  KVCACHE_RETURN_IF_ERROR(CheckRmsNorm(x, weight, y));
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
  KVCACHE_RETURN_IF_ERROR(CheckSoftCap(x, cap));
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
  if (MultipliesColumns(x, y)) {
    return ScaleColumns(pool, x, {y.as<const float>(), static_cast<std::size_t>(y.elements())});
  }
  KVCACHE_RETURN_IF_ERROR(CheckSameShape("multiply", x, y));
  ForParts(pool, x.elements(), kTaskValues, [&](std::int64_t begin, std::int64_t end) {
    kernel::Multiply(x.as<float>() + begin, y.as<const float>() + begin, end - begin);
  });
  return Status::Ok();
}

Status AddBias(ThreadPool& pool, const TensorView& x, const TensorView& bias) {
  KVCACHE_RETURN_IF_ERROR(CheckAddBias(x, bias));
  ForParts(pool, x.dims[1], kTaskValues / std::max<std::int64_t>(1, x.dims[0]),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               kernel::Add(Row(x, i), bias.as<const float>(), x.dims[0]);
             }
           });
  return Status::Ok();
}

Status ScaleColumns(ThreadPool& pool, const TensorView& x, std::span<const float> factors) {
  KVCACHE_RETURN_IF_ERROR(CheckScaleColumns(x, factors.size()));
  ForParts(pool, x.dims[1], kTaskValues / std::max<std::int64_t>(1, x.dims[0]),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               kernel::Scale(Row(x, i), factors[static_cast<std::size_t>(i)], x.dims[0], Row(x, i));
             }
           });
  return Status::Ok();
}

}  // namespace kvcache::cpu
