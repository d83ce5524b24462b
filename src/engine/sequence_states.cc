#include "engine/sequence_states.h"

#include <algorithm>
#include <cstddef>

namespace kvcache {

SequenceStates::SequenceStates(int sequences, int hidden_size, int max_batch)
    : hidden_size_(hidden_size),
      rows_(static_cast<std::size_t>(sequences) * kKept * static_cast<std::size_t>(hidden_size)),
      positions_(static_cast<std::size_t>(sequences) * kKept),
      counts_(static_cast<std::size_t>(sequences)),
      last_(static_cast<std::size_t>(sequences)),
      of_token_(static_cast<std::size_t>(max_batch)) {
  wanted_.reserve(kKept);
}

std::int32_t SequenceStates::RowOf(SequenceId sequence, Position position) const {
  if (!Knows(sequence)) return -1;
  const std::int32_t first = Index(sequence) * kKept;
  for (int i = 0; i < counts_[static_cast<std::size_t>(Index(sequence))]; ++i) {
    if (positions_[static_cast<std::size_t>(first + i)] == position) return first + i;
  }
  return -1;
}

const float* SequenceStates::Find(SequenceId sequence, Position position) const {
  const std::int32_t row = RowOf(sequence, position);
  return row < 0 ? nullptr : rows_.data() + row * hidden_size_;
}

PreviousStates SequenceStates::Before(const EngineBatch& batch) {
  const std::size_t count = std::min(batch.tokens.size(), of_token_.size());
  std::fill(last_.begin(), last_.end(), -1);
  for (std::size_t i = 0; i < count; ++i) {
    const SequenceId sequence = batch.sequences[i];
    of_token_[i] = PreviousStates::kUnknown;
    if (!Knows(sequence)) continue;  // the cache refuses the batch
    std::int32_t& last = last_[static_cast<std::size_t>(Index(sequence))];
    const bool follows =
        last >= 0 && batch.positions[static_cast<std::size_t>(last)] + 1 == batch.positions[i];
    const bool has_parent = i < batch.parents.size() && batch.parents[i] >= 0;
    if (has_parent) {
      of_token_[i] = batch.parents[i];
    } else if (follows && batch.parents.empty()) {
      of_token_[i] = last;
    } else if (const std::int32_t row = RowOf(sequence, batch.positions[i] - 1); row >= 0) {
      of_token_[i] = -2 - row;
    }
    last = static_cast<std::int32_t>(i);
  }
  return {.of_token = std::span(of_token_).first(count), .known = rows_.data()};
}

Status SequenceStates::Keep(const EngineBatch& batch, Model& model) {
  std::fill(last_.begin(), last_.end(), 0);  // 1: the sequence is done
  for (std::size_t end = batch.tokens.size(); end-- > 0;) {
    const SequenceId sequence = batch.sequences[end];
    if (!Knows(sequence)) continue;
    const auto index = static_cast<std::size_t>(Index(sequence));
    if (last_[index] != 0) continue;
    last_[index] = 1;
    wanted_.clear();
    const std::size_t first = index * kKept;
    for (std::size_t i = end + 1; i-- > 0 && wanted_.size() < kKept;) {
      if (batch.sequences[i] != sequence) continue;
      positions_[first + wanted_.size()] = batch.positions[i];
      wanted_.push_back(static_cast<std::int32_t>(i));
    }
    counts_[index] = 0;
    KVCACHE_RETURN_IF_ERROR(
        model.FinalStates(wanted_, rows_.data() + static_cast<std::int64_t>(first) * hidden_size_));
    counts_[index] = static_cast<int>(wanted_.size());
  }
  return Status::Ok();
}

void SequenceStates::Forget(SequenceId sequence) {
  if (Knows(sequence)) counts_[static_cast<std::size_t>(Index(sequence))] = 0;
}

void SequenceStates::Copy(SequenceId from, SequenceId to) {
  if (!Knows(from) || !Knows(to)) return;
  const auto source = static_cast<std::ptrdiff_t>(Index(from)) * kKept;
  const auto target = static_cast<std::ptrdiff_t>(Index(to)) * kKept;
  const int count = counts_[static_cast<std::size_t>(Index(from))];
  std::copy_n(positions_.begin() + source, count, positions_.begin() + target);
  std::copy_n(rows_.begin() + source * hidden_size_, count * hidden_size_,
              rows_.begin() + target * hidden_size_);
  counts_[static_cast<std::size_t>(Index(to))] = count;
}

}  // namespace kvcache
