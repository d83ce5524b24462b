// The backend for the processor that the process runs on. It owns a thread pool and a workspace;
// the kernels are free functions in attention/, kv/, linear/ and ops/.
//
// Thread safety: one call at a time, as kvcache/backend.h says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "backend/cpu/attention/attention_plans.h"
#include "backend/cpu/common/workspace.h"
#include "backend/cpu/linear/weight_memory.h"
#include "backend/cpu/ops/rope.h"
#include "kvcache/backend.h"
#include "kvcache/cell_memory.h"
#include "kvcache/panel_store.h"
#include "platform/numa/memory_nodes.h"
#include "platform/numa/numa_system.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

class CpuBackend : public Backend, public CellMemory, public PanelUser {
 public:
  // REQUIRES: threads >= 1.
  explicit CpuBackend(int threads) : pool_(threads) {}
  // With threads on several memory nodes. REQUIRES: as ThreadPool.
  CpuBackend(std::span<const NodeThreads> nodes, NumaSystem& system) : pool_(nodes, system) {}

  // The number of threads; fewer than asked for if the system refuses more.
  int threads() const { return pool_.threads(); }
  const ThreadPool& pool() const { return pool_; }
  // What CpuPlacement returns.
  const std::string& placement() const { return placement_; }
  void set_placement(std::string text) { placement_ = std::move(text); }

  std::string_view name() const override { return "cpu"; }
  CacheConfig preferred_cache_config() const override;
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override;
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override;
  Result<std::unique_ptr<Buffer>> AllocateCells(std::size_t size_bytes) override;
  std::int64_t ReleasableCells(const LayerKv& layer) const override;
  Status ReleaseCells(const LayerKv& layer, const CellRun& run) override;

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

  void UsePanels(std::shared_ptr<PanelStore> store) override { panels_ = std::move(store); }
  std::uint32_t panel_layout() const override;
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

  Status ShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                   const TensorView& y) override;
  Status DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                    const TensorView& steps, const TensorView& decays) override;
  Status StateScan(const ScanInputs& inputs, const ScanOptions& options,
                   const StateSegments& states, const TensorView& out) override;

 private:
  ThreadPool pool_;
  std::string placement_;
  Workspace workspace_;
  WeightMemory weight_memory_;
  std::shared_ptr<PanelStore> panels_;
  AttentionPlans attention_plans_;
  RopeTables rope_tables_;
};

}  // namespace kvcache::cpu
