#include "backend/cuda/ops/experts.h"

#include <string>

#include "backend/cpu/ops/experts_check.h"
#include "backend/cuda/ops/experts_kernels.h"
#include "backend/cuda/ops/vectors.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kRoute{"route", kRouteThreads};
constexpr Kernel kCombine{"combine", kCombineThreads};

std::int64_t ColumnStride(const TensorView& view) {
  return view.stride_bytes[1] / static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

Status RouteOnDevice(Device& device, CallMemory& memory, const TensorView& logits,
                     const RouterOptions& options, std::span<const float> factors,
                     const DeviceChoices& to) {
  RouteArgs args{.logits = logits.as<const float>(),
                 .selection_bias = nullptr,
                 .factors = nullptr,
                 .experts = to.experts,
                 .weights = to.weights,
                 .stride = ColumnStride(logits),
                 .count = static_cast<std::int32_t>(logits.dims[0]),
                 .chosen = options.chosen,
                 .groups = options.groups > 1 ? options.groups : 1,
                 .groups_used = options.groups_used,
                 .group_best = options.group_best,
                 .scale = options.scale,
                 .sigmoid = options.gate == RouterOptions::Gate::kSigmoid,
                 .normalized = options.weights == RouterOptions::Weights::kNormalized};
  if (!options.selection_bias.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(args.selection_bias, memory.Upload(options.selection_bias));
  }
  if (!factors.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(args.factors, memory.Upload(factors));
  }
  const std::size_t shared = static_cast<std::size_t>(RouteSharedFloats(args)) * sizeof(float);
  if (shared > device.info().shared_bytes) {
    return {StatusCode::kUnsupported,
            "route: " + std::to_string(args.count) + " experts need " + std::to_string(shared) +
                " bytes of a block's shared memory, of which the device has " +
                std::to_string(device.info().shared_bytes)};
  }
  return Launch(device, kRoute, {.x = logits.dims[1]}, args, shared);
}

Status CombineOnDevice(Device& device, const TensorView& y, const DeviceParts& parts,
                       const TensorView& out) {
  const std::int64_t blocks = (out.dims[0] + kCombineBlock - 1) / kCombineBlock;
  const CombineArgs args{.y = y.as<const float>(),
                         .columns = parts.columns,
                         .weights = parts.weights,
                         .out = out.as<float>(),
                         .y_stride = ColumnStride(y),
                         .out_stride = ColumnStride(out),
                         .width = out.dims[0],
                         .parts = parts.parts,
                         .blocks = static_cast<std::int32_t>(blocks),
                         .vectors = HoldsVectors(y.as<const float>(), ColumnStride(y)) &&
                                    HoldsVectors(out.as<const float>(), ColumnStride(out))};
  return Launch(device, kCombine, {.x = blocks * out.dims[1]}, args);
}

Status Route(Device& device, CallMemory& memory, const TensorView& logits,
             const RouterOptions& options, std::span<std::int32_t> experts,
             std::span<float> weights) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckRoute(logits, options, experts.size(), weights.size()));
  if (experts.empty()) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const chosen, memory.Take(experts.size_bytes()));
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const weighed, memory.Take(weights.size_bytes()));
  KVCACHE_RETURN_IF_ERROR(
      RouteOnDevice(device, memory, logits, options, {},
                    {reinterpret_cast<std::int32_t*>(chosen), reinterpret_cast<float*>(weighed)}));
  KVCACHE_RETURN_IF_ERROR(device.CopyOut(chosen, std::as_writable_bytes(experts)));
  return device.CopyOut(weighed, std::as_writable_bytes(weights));
}

Status Combine(Device& device, CallMemory& memory, const TensorView& y,
               std::span<const std::int32_t> columns, std::span<const float> weights,
               const TensorView& out) {
  if (columns.empty() && out.dims[1] == 0) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(cpu::CheckCombine(y, columns, weights, out));
  if (out.dims[0] == 0) return Status::Ok();
  DeviceParts parts;
  parts.parts = static_cast<std::int32_t>(static_cast<std::int64_t>(columns.size()) / out.dims[1]);
  KVCACHE_ASSIGN_OR_RETURN(parts.columns, memory.Upload(columns));
  KVCACHE_ASSIGN_OR_RETURN(parts.weights, memory.Upload(weights));
  return CombineOnDevice(device, y, parts, out);
}

}  // namespace kvcache::cuda
