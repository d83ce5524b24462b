// The causal cache's class, for its factory and for tests that look inside.
//
//   CausalCache ── CellTable     who sees which cell
//               ├─ LayerStore    the bytes
//               ├─ ForwardPass   the batch in progress
//               └─ HistoryMask   the mask, when Get asks
#pragma once

#include <cstdint>
#include <optional>

#include "cache/cell_table.h"
#include "cache/forward_pass.h"
#include "cache/history_mask.h"
#include "cache/layer_store.h"
#include "kvcache/causal_cache.h"

namespace kvcache {

class CausalCache final : public Cache {
 public:
  explicit CausalCache(CausalOptions options) : shift_keys_(std::move(options.shift_keys)) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status SetConfig(const CacheConfig& config) override;
  Status StartForward(const Batch& batch, ForwardMode mode) override;
  void SetLayer(int layer) override { layer_ = layer; }
  Status Put(const TensorView& k, const TensorView& v) override;
  Result<History> Get() override;
  Result<LayerKv> Storage() override;
  const Visibility& Visible() const override { return pass_.visibility(); }
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId sequence, Position position) const override;
  Status Remove(SequenceId sequence, Position begin, Position end) override;
  std::int64_t AllocatedBytes() const override { return layers_.allocated_bytes(); }

  const CellTable& cells() const { return cells_; }

 private:
  enum class State : std::uint8_t { kNew, kReady, kClosed };

  Status CheckReady() const;
  Status CheckSequence(SequenceId id) const;
  Status CheckBatch(const Batch& batch) const;
  Status CheckPositions(std::span<const ForwardPass::Token> tokens) const;
  Status ReserveRuns(std::span<const ForwardPass::Token> tokens);
  Status RemoveMiddle(SequenceId sequence, Position begin, Position end);
  Status EnsureMask();

  ShiftKeysFn shift_keys_;
  State state_ = State::kNew;
  KvBackend* backend_ = nullptr;
  std::optional<CacheConfig> config_;  // as set, or as the backend wished at Init
  CacheOptions options_;
  CellTable cells_;
  LayerStore layers_;
  ForwardPass pass_;
  HistoryMask mask_;
  CellRun masked_cells_;  // what mask_ covers; length 0: to be built for this pass
  int layer_ = 0;
};

}  // namespace kvcache
