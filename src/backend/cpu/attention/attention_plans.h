// The plans of attention calls. The layers of a pass see the same tokens, so a layer gets the plan of the layer before
// it: a plan is built again only if what it depends on has changed. Two kinds of layers, such as those with a window
// and those without, have a plan each. In the next pass of sequences that decode, all of them are a token longer: the
// plan then grows, as long as no sequence begins a split.
//
// Thread safety: as AttentionPlan. Allocates only while a plan grows.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/cpu/attention/attention_plan.h"
#include "base/prefetch.h"
#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "kvcache/visibility.h"

namespace kvcache::cpu {

// All that a plan depends on, by value: the memory of a visibility may hold other tokens in the next pass.
class PlanInputs {
 public:
  // Returns whether the inputs are of the same kind of layer.
  bool SameLayer(const LayerKv& layer, int group, int threads, const Visibility& visibility) const;
  // Returns whether the tokens and what they see are the same. REQUIRES: SameLayer.
  bool SameTokens(const Visibility& visibility) const;
  // Returns whether each history has a token more, which is its query, at the end of its last run and not at the
  // beginning of a split; then takes these inputs. REQUIRES: SameLayer; one query for each history, in their order,
  // without limits of what it sees.
  bool Grow(const Visibility& visibility);
  // Returns whether the inputs may grow.
  bool is_decode() const { return is_decode_; }
  // Throws std::bad_alloc; the inputs are then unlike all others.
  void Set(const LayerKv& layer, int group, int threads, const Visibility& visibility);
  // Asks memory for the inputs.
  void Prefetch() const { PrefetchRange(numbers_.data(), numbers_.size() * sizeof(std::int32_t)); }
  // Makes them unlike all others.
  void Clear() { group_ = 0; }

 private:
  LayerKv layer_;
  int group_ = 0;
  int threads_ = 0;
  std::int32_t window_ = 0;
  std::int32_t chunk_ = 0;
  std::size_t queries_ = 0;
  std::size_t histories_ = 0;
  bool is_decode_ = false;
  // Side by side: the layers of a pass displace them from the processor's caches. Positions [queries], histories
  // [queries], and of each history the number of its runs and the three numbers of each run.
  std::vector<std::int32_t> numbers_;
  std::vector<std::uint8_t> bidirectional_;  // [queries], or empty
};

class AttentionPlans {
 public:
  // Asks memory for what For looks at. The kernels of a layer displace it from the processor's caches.
  void Prefetch(const Visibility& visibility) const;
  // Returns the plan of a call, of which no task has run. Errors: those of CheckVisibility. Throws std::bad_alloc.
  // REQUIRES: a layer that CheckAttention accepted; group = heads / kv_heads.
  Result<AttentionPlan*> For(const LayerKv& layer, int group, int threads, std::int64_t batch,
                             const Visibility& visibility);

 private:
  struct Known {
    PlanInputs inputs;
    AttentionPlan plan;
  };

  std::array<Known, 2> known_;
  std::size_t last_ = 0;  // which of them was used last
};

}  // namespace kvcache::cpu
