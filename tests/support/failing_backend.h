// A backend that forwards every call to another backend and fails a chosen one.
//
// Thread safety: one thread at a time, like any backend.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kvcache/backend.h"
#include "kvcache/cell_memory.h"

namespace kvcache::testing {

class FailingBackend : public Backend, public CellMemory {
 public:
  explicit FailingBackend(std::unique_ptr<Backend> inner)
      : inner_(std::move(inner)), memory_(dynamic_cast<CellMemory*>(inner_.get())) {}

  // Makes the n-th call from now (1: the next; 0: none) fail with kIo and this message.
  static constexpr std::string_view kMessage = "injected failure";
  void FailNth(int n) { countdown_ = n; }
  bool failure_pending() const { return countdown_ > 0; }

  // Makes the n-th call from now (1: the next; 0: none) set *flag and succeed.
  void SetAtNth(int n, std::atomic<bool>* flag) {
    flag_countdown_ = n;
    flag_ = flag;
  }

  std::string_view name() const override { return "failing"; }
  CacheConfig preferred_cache_config() const override { return inner_->preferred_cache_config(); }
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override {
    return inner_->CheckKvTypes(k_type, v_type, layout);
  }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    if (Fails()) return Failure();
    return inner_->Allocate(size_bytes);
  }
  Result<std::unique_ptr<Buffer>> AllocateCells(std::size_t size_bytes) override {
    if (Fails()) return Failure();
    return memory_ == nullptr ? inner_->Allocate(size_bytes) : memory_->AllocateCells(size_bytes);
  }
  std::int64_t ReleasableCells(const LayerKv& layer) const override {
    return memory_ == nullptr ? 0 : memory_->ReleasableCells(layer);
  }
  Status ReleaseCells(const LayerKv& layer, const CellRun& run) override {
    return Fails() ? Failure() : memory_->ReleaseCells(layer, run);
  }
  Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                 std::span<const CellRun> cells) override {
    return Fails() ? Failure() : inner_->StoreKv(layer, k, v, cells);
  }
  Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) override {
    return Fails() ? Failure() : inner_->CopyCells(layer, moves);
  }
  Status TransferCells(const LayerKv& from, const LayerKv& to,
                       std::span<const CellMove> moves) override {
    return Fails() ? Failure() : inner_->TransferCells(from, to, moves);
  }
  Status CopyValues(const TensorView& from, const TensorView& to) override {
    return Fails() ? Failure() : inner_->CopyValues(from, to);
  }
  Status CopyToHost(const TensorView& from, std::span<std::byte> to) override {
    return Fails() ? Failure() : inner_->CopyToHost(from, to);
  }
  Status CopyFromHost(std::span<const std::byte> from, const TensorView& to) override {
    return Fails() ? Failure() : inner_->CopyFromHost(from, to);
  }
  Status ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                   const RopeParams& rope) override {
    return Fails() ? Failure() : inner_->ShiftKeys(layer, cells, offset, rope);
  }
  Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                   const AttentionOptions& options, const TensorView& out) override {
    return Fails() ? Failure() : inner_->Attention(layer, q, visibility, options, out);
  }
  Result<std::unique_ptr<LinearWeight>> MakeLinear(const TensorView& w) override {
    if (Fails()) return Failure();
    return inner_->MakeLinear(w);
  }
  Status Linear(const TensorView& x, std::span<const LinearOutput> outputs) override {
    return Fails() ? Failure() : inner_->Linear(x, outputs);
  }
  Status LinearGroups(std::span<const LinearGroup> groups) override {
    return Fails() ? Failure() : inner_->LinearGroups(groups);
  }
  Status Embed(const TensorView& table, std::span<const std::int32_t> tokens,
               const TensorView& y) override {
    return Fails() ? Failure() : inner_->Embed(table, tokens, y);
  }
  Status RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                 const TensorView& y) override {
    return Fails() ? Failure() : inner_->RmsNorm(x, weight, epsilon, y);
  }
  Status Center(const TensorView& x, const TensorView& y) override {
    return Fails() ? Failure() : inner_->Center(x, y);
  }
  Status Xielu(const TensorView& x, const XieluParams& params) override {
    return Fails() ? Failure() : inner_->Xielu(x, params);
  }
  Status Rope(const TensorView& x, std::span<const Position> positions,
              const RopeParams& rope) override {
    return Fails() ? Failure() : inner_->Rope(x, positions, rope);
  }
  Status Gate(const TensorView& gate, const TensorView& up, Activation activation) override {
    return Fails() ? Failure() : inner_->Gate(gate, up, activation);
  }
  Status GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                     float limit) override {
    return Fails() ? Failure() : inner_->GateClamped(gate, up, alpha, limit);
  }
  Status Activate(const TensorView& x, Activation activation) override {
    return Fails() ? Failure() : inner_->Activate(x, activation);
  }
  Status Scale(const TensorView& x, float factor) override {
    return Fails() ? Failure() : inner_->Scale(x, factor);
  }
  Status SoftCap(const TensorView& x, float cap) override {
    return Fails() ? Failure() : inner_->SoftCap(x, cap);
  }
  Status Add(const TensorView& x, const TensorView& y) override {
    return Fails() ? Failure() : inner_->Add(x, y);
  }
  Status Multiply(const TensorView& x, const TensorView& y) override {
    return Fails() ? Failure() : inner_->Multiply(x, y);
  }
  Status AddBias(const TensorView& x, const TensorView& bias) override {
    return Fails() ? Failure() : inner_->AddBias(x, bias);
  }
  Status ScaleColumns(const TensorView& x, std::span<const float> factors) override {
    return Fails() ? Failure() : inner_->ScaleColumns(x, factors);
  }
  Status Route(const TensorView& logits, const RouterOptions& options,
               std::span<std::int32_t> experts, std::span<float> weights) override {
    return Fails() ? Failure() : inner_->Route(logits, options, experts, weights);
  }
  Status Combine(const TensorView& y, std::span<const std::int32_t> columns,
                 std::span<const float> weights, const TensorView& out) override {
    return Fails() ? Failure() : inner_->Combine(y, columns, weights, out);
  }
  Status ShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                   const TensorView& y) override {
    return Fails() ? Failure() : inner_->ShortConv(x, taps, inputs, y);
  }
  Status DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                    const TensorView& steps, const TensorView& decays) override {
    return Fails() ? Failure() : inner_->DecayRates(raw, bias, rates, steps, decays);
  }
  Status StateScan(const ScanInputs& inputs, const ScanOptions& options,
                   const StateSegments& states, const TensorView& out) override {
    return Fails() ? Failure() : inner_->StateScan(inputs, options, states, out);
  }

 private:
  bool Fails() {
    if (flag_countdown_ > 0 && --flag_countdown_ == 0) flag_->store(true);
    return countdown_ > 0 && --countdown_ == 0;
  }
  static Status Failure() { return {StatusCode::kIo, std::string(kMessage)}; }

  std::unique_ptr<Backend> inner_;
  CellMemory* memory_ = nullptr;  // of inner_; null: it has none
  int countdown_ = 0;
  int flag_countdown_ = 0;
  std::atomic<bool>* flag_ = nullptr;
};

}  // namespace kvcache::testing
