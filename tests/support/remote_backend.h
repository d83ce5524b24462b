// The CPU backend as if its memory were another machine's: the addresses of its buffers cannot be read or written by
// the host, and a kernel that is given any other address fails with kInternal. So it shows whether a caller keeps
// the host's memory and the backend's apart. It routes experts itself if that is asked for, as a device does.
//
// Thread safety: one thread at a time, like any backend.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/backend.h"

namespace kvcache::testing {

enum class RemoteRouting {
  kByHost,     // MakeRouting returns null
  kByBackend,  // MakeRouting returns an object whose calls see the backend's memory alone
};

class RemoteBackend : public Backend {
 public:
  explicit RemoteBackend(std::unique_ptr<Backend> inner,
                         RemoteRouting routing = RemoteRouting::kByHost)
      : inner_(std::move(inner)), routing_(routing) {}

  // The batches that its own routings have routed.
  int routed() const { return routed_; }

  std::string_view name() const override { return "remote"; }
  bool works_in_host_memory() const override { return false; }
  std::string_view tile_format() const override { return inner_->tile_format(); }
  CacheConfig preferred_cache_config() const override { return inner_->preferred_cache_config(); }
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override {
    return inner_->CheckKvTypes(k_type, v_type, layout);
  }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override;

  Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                 std::span<const CellRun> cells) override {
    return Call([&] { return inner_->StoreKv(Own(layer), Own(k), Own(v), cells); });
  }
  Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) override {
    return Call([&] { return inner_->CopyCells(Own(layer), moves); });
  }
  Status TransferCells(const LayerKv& from, const LayerKv& to,
                       std::span<const CellMove> moves) override {
    return Call([&] { return inner_->TransferCells(Own(from), Own(to), moves); });
  }
  Status CopyValues(const TensorView& from, const TensorView& to) override {
    return Call([&] { return inner_->CopyValues(Own(from), Own(to)); });
  }
  Status CopyToHost(const TensorView& from, std::span<std::byte> to) override {
    return Call([&] { return inner_->CopyToHost(Own(from), to); });
  }
  Status CopyFromHost(std::span<const std::byte> from, const TensorView& to) override {
    return Call([&] { return inner_->CopyFromHost(from, Own(to)); });
  }
  Status ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                   const RopeParams& rope) override {
    return Call([&] { return inner_->ShiftKeys(Own(layer), cells, offset, rope); });
  }
  Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                   const AttentionOptions& options, const TensorView& out) override {
    return Call(
        [&] { return inner_->Attention(Own(layer), Own(q), visibility, options, Own(out)); });
  }

  // Weights come from the host.
  Result<std::unique_ptr<LinearWeight>> MakeLinear(const TensorView& w) override {
    return inner_->MakeLinear(w);
  }
  Status Linear(const TensorView& x, std::span<const LinearOutput> outputs) override {
    const LinearGroup group{x, outputs};
    return LinearGroups({&group, 1});
  }
  Status LinearGroups(std::span<const LinearGroup> groups) override;
  // A call without tokens asks whether the table's type is served; the table may still be the host's.
  Status Embed(const TensorView& table, std::span<const std::int32_t> tokens,
               const TensorView& y) override {
    return Call([&] { return inner_->Embed(tokens.empty() ? table : Own(table), tokens, Own(y)); });
  }
  Status RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                 const TensorView& y) override {
    return Call([&] { return inner_->RmsNorm(Own(x), Own(weight), epsilon, Own(y)); });
  }
  Status Center(const TensorView& x, const TensorView& y) override {
    return Call([&] { return inner_->Center(Own(x), Own(y)); });
  }
  Status Rope(const TensorView& x, std::span<const Position> positions,
              const RopeParams& rope) override {
    return Call([&] { return inner_->Rope(Own(x), positions, rope); });
  }
  Status Gate(const TensorView& gate, const TensorView& up, Activation activation) override {
    return Call([&] { return inner_->Gate(Own(gate), Own(up), activation); });
  }
  Status GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                     float limit) override {
    return Call([&] { return inner_->GateClamped(Own(gate), Own(up), alpha, limit); });
  }
  Status Activate(const TensorView& x, Activation activation) override {
    return Call([&] { return inner_->Activate(Own(x), activation); });
  }
  Status Xielu(const TensorView& x, const XieluParams& params) override {
    return Call([&] { return inner_->Xielu(Own(x), params); });
  }
  Status Scale(const TensorView& x, float factor) override {
    return Call([&] { return inner_->Scale(Own(x), factor); });
  }
  Status SoftCap(const TensorView& x, float cap) override {
    return Call([&] { return inner_->SoftCap(Own(x), cap); });
  }
  Status Add(const TensorView& x, const TensorView& y) override {
    return Call([&] { return inner_->Add(Own(x), Own(y)); });
  }
  Status Multiply(const TensorView& x, const TensorView& y) override {
    return Call([&] { return inner_->Multiply(Own(x), Own(y)); });
  }
  Status AddBias(const TensorView& x, const TensorView& bias) override {
    return Call([&] { return inner_->AddBias(Own(x), Own(bias)); });
  }
  Status ScaleColumns(const TensorView& x, std::span<const float> factors) override {
    return Call([&] { return inner_->ScaleColumns(Own(x), factors); });
  }
  Status Route(const TensorView& logits, const RouterOptions& options,
               std::span<std::int32_t> experts, std::span<float> weights) override {
    return Call([&] { return inner_->Route(Own(logits), options, experts, weights); });
  }
  Status Combine(const TensorView& y, std::span<const std::int32_t> columns,
                 std::span<const float> weights, const TensorView& out) override {
    return Call([&] { return inner_->Combine(Own(y), columns, weights, Own(out)); });
  }
  Result<std::unique_ptr<ExpertRouting>> MakeRouting(const RoutingSizes& sizes) override;
  Status ShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                   const TensorView& y) override;
  Status DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                    const TensorView& steps, const TensorView& decays) override {
    return Call([&] {
      return inner_->DecayRates(Own(raw), Own(bias), Own(rates), Own(steps), Own(decays));
    });
  }
  Status StateScan(const ScanInputs& inputs, const ScanOptions& options,
                   const StateSegments& states, const TensorView& out) override;

 private:
  class RemoteBuffer;
  class Routing;

  struct ForeignAddress {
    std::string message;
  };

  // Runs `call`. If Own throws in it, the result is kInternal.
  template <class F>
  Status Call(F&& call) {
    try {
      return call();
    } catch (const ForeignAddress& foreign) {
      return {StatusCode::kInternal, foreign.message};
    }
  }

  // Return what the inner backend has in the place of a view, a layer, an address of `bytes` bytes. They throw
  // ForeignAddress.
  TensorView Own(const TensorView& view);
  LayerKv Own(const LayerKv& layer);
  std::byte* Own(std::byte* address, std::int64_t bytes);
  StateSegments Own(const StateSegments& states, std::vector<StateSegment>& segments);

  std::unique_ptr<Backend> inner_;
  RemoteRouting routing_;
  int routed_ = 0;
  std::map<std::byte*, std::size_t> buffers_;  // by the address that callers see
};

}  // namespace kvcache::testing
