#include "kvcache/host_routing.h"

#include <algorithm>
#include <new>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxOutputs = 2;

// Returns columns [begin, end) of a view.
TensorView SlotColumns(const TensorView& view, std::int32_t begin, std::int32_t end) {
  return TensorView::Dense(view.data + begin * view.stride_bytes[1], DType::kF32, view.dims[0],
                           end - begin);
}

}  // namespace

Status HostRouting::Reserve(const RoutingSizes& sizes) {
  const auto slots = static_cast<std::size_t>(sizes.tokens * sizes.chosen);
  try {
    choices_.reserve(slots);
    weights_.reserve(slots);
    slot_factors_.reserve(slots);
    token_of_slot_.reserve(slots);
    expert_of_slot_.reserve(slots);
    slots_.reserve(slots);
    begin_.assign(static_cast<std::size_t>(sizes.experts) + 1, 0);
    const std::size_t groups = std::min(slots, static_cast<std::size_t>(sizes.experts));
    groups_.reserve(groups);
    outputs_.reserve(kMaxOutputs * std::max(groups, static_cast<std::size_t>(sizes.chosen)));
  } catch (const std::bad_alloc&) {
    return OutOfMemory(StrCat("no memory to route ", sizes.tokens, " tokens to ", sizes.chosen,
                              " of ", sizes.experts, " experts each"));
  }
  experts_ = sizes.experts;
  chosen_ = sizes.chosen;
  return Status::Ok();
}

Status HostRouting::Route(const TensorView& logits, const RouterOptions& options,
                          std::span<const float> factors) {
  const auto slots = static_cast<std::size_t>(logits.dims[1] * chosen_);
  choices_.resize(slots);
  weights_.resize(slots);
  KVCACHE_RETURN_IF_ERROR(backend_->Route(logits, options, choices_, weights_));
  if (!factors.empty()) {
    for (std::size_t i = 0; i < slots; ++i) {
      weights_[i] *= factors[static_cast<std::size_t>(choices_[i])];
    }
  }
  Group();
  return Status::Ok();
}

void HostRouting::Group() {
  const std::size_t slots = choices_.size();
  token_of_slot_.resize(slots);
  expert_of_slot_.resize(slots);
  slots_.resize(slots);
  // A counting sort. begin_[e + 1] first counts the slots of expert e; the running sum makes
  // begin_[e] the first slot of e; filling moves begin_[e] up to the first slot of e + 1.
  std::ranges::fill(begin_, 0);
  for (const std::int32_t expert : choices_) ++begin_[static_cast<std::size_t>(expert) + 1];
  for (std::size_t e = 1; e < begin_.size(); ++e) begin_[e] += begin_[e - 1];
  for (std::size_t i = 0; i < slots; ++i) {
    const std::int32_t slot = begin_[static_cast<std::size_t>(choices_[i])]++;
    slots_[i] = slot;
    expert_of_slot_[static_cast<std::size_t>(slot)] = choices_[i];
    token_of_slot_[static_cast<std::size_t>(slot)] =
        static_cast<std::int32_t>(i / static_cast<std::size_t>(chosen_));
  }
  std::shift_right(begin_.begin(), begin_.end(), 1);
  begin_[0] = 0;
}

Status HostRouting::GatherTokens(const TensorView& x, const TensorView& columns) {
  return backend_->Embed(x, token_of_slot_, columns);
}

Status HostRouting::GatherExperts(const TensorView& table, const TensorView& columns) {
  return backend_->Embed(table, expert_of_slot_, columns);
}

Status HostRouting::WeighInputs(const TensorView& columns) {
  slot_factors_.resize(weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    slot_factors_[static_cast<std::size_t>(slots_[i])] = weights_[i];
    weights_[i] = 1.0f;
  }
  return backend_->ScaleColumns(columns, slot_factors_);
}

Status HostRouting::ScaleByExpert(const TensorView& columns, std::span<const float> factors) {
  slot_factors_.resize(expert_of_slot_.size());
  for (std::size_t i = 0; i < slot_factors_.size(); ++i) {
    slot_factors_[i] = factors[static_cast<std::size_t>(expert_of_slot_[i])];
  }
  return backend_->ScaleColumns(columns, slot_factors_);
}

Status HostRouting::Linear(const TensorView& x, std::span<const ExpertOutput> outputs) {
  groups_.clear();
  outputs_.clear();
  // If all experts multiply the same column, one group quantises it once.
  const bool one_column = x.dims[1] == 1;
  for (std::int32_t expert = 0; expert < experts_; ++expert) {
    const std::int32_t begin = begin_[static_cast<std::size_t>(expert)];
    const std::int32_t end = begin_[static_cast<std::size_t>(expert) + 1];
    if (begin == end) continue;
    for (const ExpertOutput& output : outputs) {
      outputs_.push_back(
          {output.weight, SlotColumns(output.y, begin, end), output.first + expert * output.step});
    }
    if (!one_column) {
      groups_.push_back({SlotColumns(x, begin, end), std::span(outputs_).last(outputs.size())});
    }
  }
  if (one_column) groups_.push_back({x, outputs_});
  return backend_->LinearGroups(groups_);
}

Status HostRouting::Combine(const TensorView& columns, const TensorView& out) {
  return backend_->Combine(columns, slots_, weights_, out);
}

}  // namespace kvcache
