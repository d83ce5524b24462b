#include "backend/cuda/ops/norms.h"

#include "backend/cpu/ops/elementwise_check.h"
#include "backend/cuda/ops/norms_kernels.h"
#include "backend/cuda/ops/vectors.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kNormNarrow{"norm_narrow", kNormThreads};
constexpr Kernel kNormWide{"norm_wide", kNormThreads, KernelPart::kNorm};
constexpr Kernel kCenterNarrow{"center_narrow", kNormThreads};
constexpr Kernel kCenterWide{"center_wide", kNormThreads};

std::int64_t RowStride(const TensorView& view) {
  return view.stride_bytes[1] / static_cast<std::int64_t>(sizeof(float));
}

Status LaunchRows(Device& device, const Kernel& narrow, const Kernel& wide, const TensorView& x,
                  const float* weight, float epsilon, const TensorView& y) {
  const NormArgs args{
      .x = x.as<const float>(),
      .weight = weight,
      .y = y.as<float>(),
      .x_stride = RowStride(x),
      .y_stride = RowStride(y),
      .width = static_cast<std::int32_t>(x.dims[0]),
      .rows = x.dims[1],
      .epsilon = epsilon,
      .vectors = x.dims[0] % 4 == 0 && HoldsVectors(x.as<const float>(), RowStride(x)) &&
                 HoldsVectors(y.as<const float>(), RowStride(y)) && HoldsVectors(weight)};
  if (args.width <= kNarrowWidth) {
    return Launch(device, narrow, {.x = (args.rows + kNarrowRows - 1) / kNarrowRows}, args);
  }
  return Launch(device, wide, {.x = args.rows}, args, sizeof(WideNormMemory));
}

}  // namespace

Status RmsNorm(Device& device, const TensorView& x, const TensorView& weight, float epsilon,
               const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckRmsNorm(x, weight, y));
  return LaunchRows(device, kNormNarrow, kNormWide, x, weight.as<const float>(), epsilon, y);
}

Status Center(Device& device, const TensorView& x, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckCenter(x, y));
  return LaunchRows(device, kCenterNarrow, kCenterWide, x, nullptr, 0.0f, y);
}

}  // namespace kvcache::cuda
