// Routing of tokens to experts on the host, by the calls that each Backend has: the backend gives the choices, the
// host groups them, and one call multiplies all groups. It serves a model over a backend without a routing of its own,
// and a backend that is made of others.
//
// Exactness: groups only decide which column holds a token's values.
// Ownership: the backend must outlive the object. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/backend.h"

namespace kvcache {

class HostRouting final : public ExpertRouting {
 public:
  // Allocates memory for these sizes. Later calls allocate nothing. Errors: kOutOfMemory with the sizes.
  Status Reserve(const RoutingSizes& sizes);

  // The backend of all later calls.
  void Use(Backend& backend) { backend_ = &backend; }

  Status Route(const TensorView& logits, const RouterOptions& options,
               std::span<const float> factors) override;
  Status GatherTokens(const TensorView& x, const TensorView& columns) override;
  Status GatherExperts(const TensorView& table, const TensorView& columns) override;
  Status WeighInputs(const TensorView& columns) override;
  Status ScaleByExpert(const TensorView& columns, std::span<const float> factors) override;
  // REQUIRES: at most two outputs.
  Status Linear(const TensorView& x, std::span<const ExpertOutput> outputs) override;
  Status Combine(const TensorView& columns, const TensorView& out) override;
  Result<ExpertSlots> Slots() override { return ExpertSlots{token_of_slot_, expert_of_slot_}; }

  // [chosen × batch] slots of each token, in the order of its choices.
  std::span<const std::int32_t> slots() const { return slots_; }

 private:
  // Sorts the choices into slots, by expert and then by token. Cost: O(batch × chosen + experts).
  void Group();

  Backend* backend_ = nullptr;
  int experts_ = 0;
  int chosen_ = 0;
  std::vector<std::int32_t> choices_;         // [chosen × batch]
  std::vector<float> weights_;                // [chosen × batch]
  std::vector<float> slot_factors_;           // [slots]
  std::vector<std::int32_t> token_of_slot_;   // [slots]
  std::vector<std::int32_t> expert_of_slot_;  // [slots]
  std::vector<std::int32_t> slots_;           // [chosen × batch]
  std::vector<std::int32_t> begin_;           // [experts + 1]: first slot of each expert
  std::vector<LinearOutput> outputs_;
  std::vector<LinearGroup> groups_;
};

}  // namespace kvcache
