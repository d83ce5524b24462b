// Two backends as one: the first computes what comes before a layer of the model, the second that layer and what
// comes behind it. So a GPU takes as many of the last layers as its memory has room for.
//
// Memory is of two kinds. What AllocateForLayer returns, and what MakeLinear makes, belongs to the backend of one
// layer. What Allocate returns (activations, scratch) exists in both, and EnterLayer copies the values that are in use
// when the layer belongs to the other backend. A buffer's second half is allocated when the second backend first uses
// it. Callers see the first backend's addresses.
//
// Thread safety: one call at a time, as kvcache/backend.h says. Errors: those of both backends; kInternal for a call
// that mixes memory of both.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/split/split_sides.h"
#include "kvcache/backend.h"

namespace kvcache {

class SplitBackend final : public Backend {
 public:
  // `second` has the layers from `boundary` on. REQUIRES: both store cells in the same layout.
  SplitBackend(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second, int boundary)
      : sides_(std::move(first), std::move(second), boundary) {}

  std::string_view name() const override { return "split"; }
  CacheConfig preferred_cache_config() const override;
  bool works_in_host_memory() const override { return sides_.here().works_in_host_memory(); }
  std::string_view tile_format() const override { return sides_.on(0).tile_format(); }
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override;
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override;
  Result<std::unique_ptr<Buffer>> AllocateForLayer(int layer, std::size_t size_bytes) override;
  Status EnterLayer(int layer, const TensorView& live) override;

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
  Result<std::unique_ptr<LinearWeight>> MakeLinearBeside(const LinearWeight& base,
                                                         const TensorView& w) override;
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
  // Returns null if neither backend has a routing.
  Result<std::unique_ptr<ExpertRouting>> MakeRouting(const RoutingSizes& sizes) override;

  Status ShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                   const TensorView& y) override;
  Status DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                    const TensorView& steps, const TensorView& decays) override;
  Status StateScan(const ScanInputs& inputs, const ScanOptions& options,
                   const StateSegments& states, const TensorView& out) override;

 private:
  SplitSides sides_;
  std::vector<LinearOutput> outputs_;
  std::vector<LinearGroup> groups_;
};

}  // namespace kvcache
