// A backend for the tests of attention: cells lie in host memory and are written by the CPU backend; attention runs on
// a device, with copies of the layer and of the queries.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/shim/shim_device.h"
#include "gtest/gtest.h"
#include "kvcache/kv_backend.h"

namespace kvcache::cuda {

class DeviceAttention final : public KvBackend {
 public:
  explicit DeviceAttention(const ShimOptions& options = {},
                           std::int64_t max_partial_floats = kMaxPartialFloats)
      : device_(MakeShimDevice(options)),
        memory_(*device_),
        plans_(max_partial_floats),
        host_(cpu::CpuWithThreads(1)) {}

  std::string_view name() const override { return "shim"; }
  CacheConfig preferred_cache_config() const override { return {}; }
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override {
    return host_->CheckKvTypes(k_type, v_type, layout);
  }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    return host_->Allocate(size_bytes);
  }
  Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                 std::span<const CellRun> cells) override {
    return host_->StoreKv(layer, k, v, cells);
  }
  Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) override {
    return host_->CopyCells(layer, moves);
  }
  Status CopyValues(const TensorView& from, const TensorView& to) override {
    return host_->CopyValues(from, to);
  }
  Status ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                   const RopeParams& rope) override {
    return host_->ShiftKeys(layer, cells, offset, rope);
  }

  Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                   const AttentionOptions& options, const TensorView& out) override {
    LayerKv copy = layer;
    KVCACHE_ASSIGN_OR_RETURN(const auto k, Upload(layer.k, layer.KBytes()));
    KVCACHE_ASSIGN_OR_RETURN(const auto v, Upload(layer.v, layer.VBytes()));
    KVCACHE_ASSIGN_OR_RETURN(const auto queries, Upload(q.data, Bytes(q)));
    KVCACHE_ASSIGN_OR_RETURN(const auto result, Upload(out.data, Bytes(out)));
    copy.k = k->data();
    copy.v = layer.v == nullptr ? nullptr : v->data();
    TensorView device_q = q;
    TensorView device_out = out;
    device_q.data = queries->data();
    device_out.data = result->data();
    memory_.BeginCall();
    KVCACHE_RETURN_IF_ERROR(cuda::Attention(*device_, memory_, plans_, copy, device_q, visibility,
                                            options, device_out));
    return device_->CopyOut(result->data(), {out.data, static_cast<std::size_t>(Bytes(out))});
  }

 private:
  static std::int64_t Bytes(const TensorView& view) { return BytesOf(view.dtype, view.elements()); }

  Result<std::unique_ptr<Buffer>> Upload(const std::byte* from, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, device_->Allocate(size));
    if (size > 0) KVCACHE_RETURN_IF_ERROR(device_->CopyIn({from, size}, buffer->data()));
    return buffer;
  }

  std::unique_ptr<Device> device_;
  CallMemory memory_;
  AttentionPlans plans_;
  std::unique_ptr<Backend> host_;
};

}  // namespace kvcache::cuda
