// Experts of a model whose layers are divided between two backends: each layer's are routed by its backend, so that a
// device's choices stay on the device. A backend without a routing is routed by the host.
//
// Thread safety: that of the backends. Ownership: the split backend must outlive the object. Errors: those of the
// parts; kInternal for memory or a weight of the other backend.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "backend/split/split_memory.h"
#include "kvcache/backend.h"
#include "kvcache/host_routing.h"

namespace kvcache {

class SplitRouting final : public ExpertRouting {
 public:
  // The backends' own routings; null: the host routes.
  using Parts = std::array<std::unique_ptr<ExpertRouting>, 2>;

  // `whole` is the backend of both, `memory` its memory, and `side` tells the backend of the layer that was entered
  // last. Errors: kOutOfMemory.
  static Result<std::unique_ptr<ExpertRouting>> Make(Backend& whole, SplitMemory& memory,
                                                     const int& side, Parts parts,
                                                     const RoutingSizes& sizes);

  Status Route(const TensorView& logits, const RouterOptions& options,
               std::span<const float> factors) override;
  Status GatherTokens(const TensorView& x, const TensorView& columns) override;
  Status GatherExperts(const TensorView& table, const TensorView& columns) override;
  Status WeighInputs(const TensorView& columns) override;
  Status ScaleByExpert(const TensorView& columns, std::span<const float> factors) override;
  Status Linear(const TensorView& x, std::span<const ExpertOutput> outputs) override;
  Status Combine(const TensorView& columns, const TensorView& out) override;
  Result<ExpertSlots> Slots() override;

 private:
  SplitRouting(SplitMemory& memory, const int& side, Parts parts)
      : memory_(memory), layer_side_(side), parts_(std::move(parts)) {}

  // Returns the routing of the batch's backend, or null if the host routes.
  ExpertRouting* part() const { return parts_[static_cast<std::size_t>(side_)].get(); }
  // Calls f(routing, views…): the backend's routing with the views as the backend has them, or the host's with the
  // caller's.
  template <class F, class... Views>
  Status With(F&& f, const Views&... views);

  SplitMemory& memory_;
  const int& layer_side_;
  int side_ = 0;  // of the batch
  Parts parts_;
  HostRouting host_;
  std::vector<ExpertOutput> outputs_;
};

}  // namespace kvcache
