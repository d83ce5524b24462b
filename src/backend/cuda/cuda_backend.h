// The backend for a GPU: KvBackend and Backend over a Device. The calls are free functions in kv/,
// attention/, linear/ and ops/.
//
// Thread safety: one call at a time, as kvcache/backend.h says. Calls return before the device has done
// their work, except for those that return something in host memory.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/joined/joined_device.h"
#include "backend/cuda/ops/rope.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

class CudaBackend final : public Backend {
 public:
  // REQUIRES: `device` is not null.
  explicit CudaBackend(std::unique_ptr<Device> device)
      : device_(std::make_unique<JoinedDevice>(std::move(device))), memory_(*device_) {}

  Device& device() { return *device_; }

  std::string_view name() const override { return "cuda"; }
  CacheConfig preferred_cache_config() const override;
  bool works_in_host_memory() const override { return false; }
  std::string_view tile_format() const override { return "cpu"; }
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override;
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override;

  Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                 std::span<const CellRun> cells) override;
  Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) override;
  Status TransferCells(const LayerKv& from, const LayerKv& to,
                       std::span<const CellMove> moves) override;
  Status CopyValues(const TensorView& from, const TensorView& to) override;
  Status CopyToHost(const TensorView& from, std::span<std::byte> to) override;
  Status CopyFromHost(std::span<const std::byte> from, const TensorView& to) override;
  Status ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                   const RopeParams& rope) override;
  Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                   const AttentionOptions& options, const TensorView& out) override;

  Result<std::unique_ptr<LinearWeight>> MakeLinear(const TensorView& w) override;
  Status Linear(const TensorView& x, std::span<const LinearOutput> outputs) override;
  Status LinearGroups(std::span<const LinearGroup> groups) override;
  Status Embed(const TensorView& table, std::span<const std::int32_t> tokens,
               const TensorView& y) override;
  Status RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                 const TensorView& y) override;
  Status Center(const TensorView& x, const TensorView& y) override;
  Status Rope(const TensorView& x, std::span<const Position> positions,
              const RopeParams& rope) override;
  Status Gate(const TensorView& gate, const TensorView& up, Activation activation) override;
  Status GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                     float limit) override;
  Status Activate(const TensorView& x, Activation activation) override;
  Status Xielu(const TensorView& x, const XieluParams& params) override;
  Status Scale(const TensorView& x, float factor) override;
  Status SoftCap(const TensorView& x, float cap) override;
  Status Add(const TensorView& x, const TensorView& y) override;
  Status Multiply(const TensorView& x, const TensorView& y) override;
  Status AddBias(const TensorView& x, const TensorView& bias) override;
  Status ScaleColumns(const TensorView& x, std::span<const float> factors) override;
  Status Route(const TensorView& logits, const RouterOptions& options,
               std::span<std::int32_t> experts, std::span<float> weights) override;
  Status Combine(const TensorView& y, std::span<const std::int32_t> columns,
                 std::span<const float> weights, const TensorView& out) override;

  Result<std::unique_ptr<ExpertRouting>> MakeRouting(const RoutingSizes& sizes) override;

  Status ShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                   const TensorView& y) override;
  Status DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                    const TensorView& steps, const TensorView& decays) override;
  Status StateScan(const ScanInputs& inputs, const ScanOptions& options,
                   const StateSegments& states, const TensorView& out) override;

 private:
  // The memory of a call that begins now.
  CallMemory& Begin() {
    memory_.BeginCall();
    return memory_;
  }

  std::unique_ptr<Device> device_;
  CallMemory memory_;
  AttentionPlans attention_plans_;
  RopeTables rope_tables_;
};

}  // namespace kvcache::cuda
