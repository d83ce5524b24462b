#include "backend/cuda/kv/values.h"

#include <string>

#include "backend/cpu/ops/copy_values.h"
#include "backend/cuda/kv/values_kernels.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kCopyValuesKernel{"copy_values", CopyValuesArgs::kThreads};

bool IsDense(const TensorView& view) {
  const TensorView dense = TensorView::Dense(view.data, view.dtype, view.dims[0], view.dims[1],
                                             view.dims[2], view.dims[3]);
  for (int i = 0; i < TensorView::kMaxRank; ++i) {
    if (view.dims[i] > 1 && view.stride_bytes[i] != dense.stride_bytes[i]) return false;
  }
  return true;
}

ValuesSide SideOf(const TensorView& view) {
  return {.data = view.data,
          .strides = {view.stride_bytes[1], view.stride_bytes[2], view.stride_bytes[3]},
          .value_bytes = InfoOf(view.dtype).block_bytes,
          .type = view.dtype};
}

// Returns the values of `view` at `data`, without gaps.
TensorView DenseLike(const TensorView& view, std::byte* data) {
  return TensorView::Dense(data, view.dtype, view.dims[0], view.dims[1], view.dims[2],
                           view.dims[3]);
}

Status CheckHostSide(const TensorView& view, std::size_t host_bytes) {
  if (static_cast<std::size_t>(BytesOf(view.dtype, view.elements())) == host_bytes) {
    return Status::Ok();
  }
  return {StatusCode::kInvalidArgument,
          "copy of " + std::to_string(view.elements()) + " values of type " +
              std::string(InfoOf(view.dtype).name) + ": the host's side has " +
              std::to_string(host_bytes) + " bytes; both must have as many"};
}

}  // namespace

Status CopyValues(Device& device, const TensorView& from, const TensorView& to) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckCopyValues(from, to));
  const std::int64_t values = from.elements();
  if (from.dtype == to.dtype && IsDense(from) && IsDense(to)) {
    return device.Copy(from.data, to.data, static_cast<std::size_t>(BytesOf(from.dtype, values)));
  }
  const CopyValuesArgs args{.from = SideOf(from),
                            .to = SideOf(to),
                            .dims = {from.dims[0], from.dims[1], from.dims[2]},
                            .values = values};
  constexpr std::int64_t kPiece = CopyValuesArgs::kThreads * CopyValuesArgs::kValues;
  return Launch(device, kCopyValuesKernel, {.x = (values + kPiece - 1) / kPiece}, args);
}

Status CopyToHost(Device& device, CallMemory& memory, const TensorView& from,
                  std::span<std::byte> to) {
  KVCACHE_RETURN_IF_ERROR(CheckHostSide(from, to.size()));
  if (IsDense(from)) return device.CopyOut(from.data, to);
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const dense, memory.Take(to.size()));
  KVCACHE_RETURN_IF_ERROR(CopyValues(device, from, DenseLike(from, dense)));
  return device.CopyOut(dense, to);
}

Status CopyFromHost(Device& device, CallMemory& memory, std::span<const std::byte> from,
                    const TensorView& to) {
  KVCACHE_RETURN_IF_ERROR(CheckHostSide(to, from.size()));
  if (IsDense(to)) return device.CopyIn(from, to.data);
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const dense, memory.Take(from.size()));
  KVCACHE_RETURN_IF_ERROR(device.CopyIn(from, dense));
  return CopyValues(device, DenseLike(to, dense), to);
}

}  // namespace kvcache::cuda
