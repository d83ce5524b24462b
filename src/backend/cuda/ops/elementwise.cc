#include "backend/cuda/ops/elementwise.h"

#include "backend/cpu/ops/elementwise_check.h"
#include "backend/cuda/ops/elementwise_kernels.h"
#include "backend/cuda/ops/vectors.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kAdd{"add_values", kElementThreads, KernelPart::kAdd};
constexpr Kernel kMultiply{"multiply_values", kElementThreads};
constexpr Kernel kScale{"scale_values", kElementThreads};
constexpr Kernel kGate{"gate_values", kElementThreads, KernelPart::kGate};
constexpr Kernel kGateClamped{"gate_clamped", kElementThreads};
constexpr Kernel kActivate{"activate_values", kElementThreads};
constexpr Kernel kSoftCap{"soft_cap", kElementThreads};
constexpr Kernel kXielu{"xielu", kElementThreads};
constexpr Kernel kAddBias{"add_bias", kElementThreads};
constexpr Kernel kScaleColumns{"scale_columns", kElementThreads};

std::int64_t BlocksOf(std::int64_t values) {
  return (values + kElementBlock - 1) / kElementBlock;
}

template <class Params>
Status LaunchElements(Device& device, const Kernel& kernel, const TensorView& x,
                      const TensorView* y, const Params& params) {
  const float* const other = y != nullptr ? y->as<const float>() : nullptr;
  const ElementArgs<Params> args{
      {.x = x.as<float>(),
       .y = other,
       .values = x.elements(),
       .vectors = HoldsVectors(x.as<const float>()) && HoldsVectors(other)},
      params};
  return Launch(device, kernel, {.x = BlocksOf(x.elements())}, args);
}

// by_row: `by` has a value per row of x, not per column.
Status LaunchColumns(Device& device, const Kernel& kernel, const TensorView& x, const float* by,
                     bool by_row, const std::int32_t* which = nullptr) {
  const std::int64_t stride = x.stride_bytes[1] / static_cast<std::int64_t>(sizeof(float));
  const std::int64_t blocks = BlocksOf(x.dims[0]);
  const ColumnArgs args{
      .x = x.as<float>(),
      .by = by,
      .which = which,
      .width = x.dims[0],
      .stride = stride,
      .blocks = static_cast<std::int32_t>(blocks),
      .vectors = HoldsVectors(x.as<const float>(), stride) && (!by_row || HoldsVectors(by))};
  return Launch(device, kernel, {.x = blocks * x.dims[1]}, args);
}

}  // namespace

Status Gate(Device& device, const TensorView& gate, const TensorView& up, Activation activation) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckSameShape("gate", gate, up));
  return LaunchElements(device, kGate, gate, &up, ActivationParams{activation});
}

Status GateClamped(Device& device, const TensorView& gate, const TensorView& up, float alpha,
                   float limit) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckSameShape("gate", gate, up));
  return LaunchElements(device, kGateClamped, gate, &up, GateClampedParams{alpha, limit});
}

Status Activate(Device& device, const TensorView& x, Activation activation) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckDense("activate", x));
  return LaunchElements(device, kActivate, x, nullptr, ActivationParams{activation});
}

Status Xielu(Device& device, const TensorView& x, const XieluParams& params) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckDense("xielu", x));
  return LaunchElements(device, kXielu, x, nullptr, params);
}

Status Scale(Device& device, const TensorView& x, float factor) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckDense("scale", x));
  return LaunchElements(device, kScale, x, nullptr, ScaleParams{factor});
}

Status SoftCap(Device& device, const TensorView& x, float cap) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckSoftCap(x, cap));
  return LaunchElements(device, kSoftCap, x, nullptr, SoftCapParams{cap});
}

Status Add(Device& device, const TensorView& x, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckSameShape("add", x, y));
  return LaunchElements(device, kAdd, x, &y, NoParams{});
}

Status Multiply(Device& device, const TensorView& x, const TensorView& y) {
  if (cpu::MultipliesColumns(x, y)) {
    KVCACHE_RETURN_IF_ERROR(cpu::CheckScaleColumns(x, static_cast<std::size_t>(y.elements())));
    return LaunchColumns(device, kScaleColumns, x, y.as<const float>(), false);
  }
  KVCACHE_RETURN_IF_ERROR(cpu::CheckSameShape("multiply", x, y));
  return LaunchElements(device, kMultiply, x, &y, NoParams{});
}

Status AddBias(Device& device, const TensorView& x, const TensorView& bias) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckAddBias(x, bias));
  return LaunchColumns(device, kAddBias, x, bias.as<const float>(), true);
}

Status ScaleColumns(Device& device, CallMemory& memory, const TensorView& x,
                    std::span<const float> factors) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckScaleColumns(x, factors.size()));
  if (x.elements() == 0) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const float* const by, memory.Upload(factors));
  return LaunchColumns(device, kScaleColumns, x, by, false);
}

Status ScaleColumnsBy(Device& device, const TensorView& x, const DeviceFactors& factors) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckScaleColumns(x, static_cast<std::size_t>(x.dims[1])));
  return LaunchColumns(device, kScaleColumns, x, factors.values, false, factors.which);
}

}  // namespace kvcache::cuda
