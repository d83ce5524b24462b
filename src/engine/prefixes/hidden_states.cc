#include "engine/prefixes/hidden_states.h"

#include <algorithm>
#include <utility>

namespace kvcache {
namespace {

constexpr Position kNoPosition = -1;

}  // namespace

HiddenStates::HiddenStates(int sequences, int hidden_size, int max_batch)
    : hidden_size_(hidden_size),
      rows_of_each_(kKept + kMarked + max_batch / kMarkedTokens),
      last_(static_cast<std::size_t>(sequences)),
      of_token_(static_cast<std::size_t>(max_batch)) {
  const auto rows = static_cast<std::size_t>(sequences) * static_cast<std::size_t>(rows_of_each_);
  rows_.resize(rows * static_cast<std::size_t>(hidden_size));
  positions_.resize(rows, kNoPosition);
  for (std::int32_t i = 0; i < sequences; ++i) {
    const std::int32_t first = i * rows_of_each_;
    latest_.push_back({.begin = first, .size = kKept});
    marked_.push_back({.begin = first + kKept, .size = rows_of_each_ - kKept});
  }
  wanted_.reserve(static_cast<std::size_t>(rows_of_each_));
}

std::int32_t HiddenStates::RowOf(SequenceId sequence, Position position) const {
  if (!Knows(sequence) || position < 0) return -1;
  const std::size_t first = FirstOf(sequence);
  for (std::int32_t i = 0; i < rows_of_each_; ++i) {
    const std::size_t row = first + static_cast<std::size_t>(i);
    if (positions_[row] == position) return static_cast<std::int32_t>(row);
  }
  return -1;
}

const float* HiddenStates::Find(SequenceId sequence, Position position) const {
  const std::int32_t row = RowOf(sequence, position);
  return row < 0 ? nullptr : rows_.data() + row * hidden_size_;
}

std::span<const float> HiddenStates::Last(SequenceId sequence, Position length) const {
  const float* const state = Find(sequence, length - 1);
  if (state == nullptr) return {};
  return {state, static_cast<std::size_t>(hidden_size_)};
}

PreviousStates HiddenStates::Before(const EngineBatch& batch) {
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

// The sequence may have gone back before the pass: what it had from there on is of another text.
Status HiddenStates::Keep(const EngineBatch& batch, Model& model) {
  std::fill(last_.begin(), last_.end(), 0);  // 1: the pass has tokens of the sequence
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const SequenceId sequence = batch.sequences[i];
    if (!Knows(sequence)) continue;
    const auto index = static_cast<std::size_t>(Index(sequence));
    if (std::exchange(last_[index], 1) == 0) ForgetFrom(sequence, batch.positions[i]);
    if ((batch.positions[i] + 1) % kMarkedTokens != 0 || !batch.parents.empty()) continue;
    const std::int32_t end_of_chunk[] = {static_cast<std::int32_t>(i)};
    KVCACHE_RETURN_IF_ERROR(Write(marked_[index], end_of_chunk, batch, model));
  }
  for (std::size_t end = batch.tokens.size(); end-- > 0;) {
    const SequenceId sequence = batch.sequences[end];
    if (!Knows(sequence)) continue;
    const auto index = static_cast<std::size_t>(Index(sequence));
    if (std::exchange(last_[index], 0) == 0) continue;
    wanted_.clear();
    for (std::size_t i = end + 1; i-- > 0 && wanted_.size() + 1 < kKept;) {
      if (batch.sequences[i] == sequence) wanted_.push_back(static_cast<std::int32_t>(i));
    }
    std::reverse(wanted_.begin(), wanted_.end());
    KVCACHE_RETURN_IF_ERROR(Write(latest_[index], wanted_, batch, model));
  }
  return Status::Ok();
}

// Rows that are not in use are written again first.
void HiddenStates::ForgetFrom(SequenceId sequence, Position position) {
  const std::size_t first = FirstOf(sequence);
  for (std::size_t row = first; row < first + static_cast<std::size_t>(rows_of_each_); ++row) {
    if (positions_[row] >= position) positions_[row] = kNoPosition;
  }
  const auto index = static_cast<std::size_t>(Index(sequence));
  for (Ring* const ring : {&latest_[index], &marked_[index]}) {
    for (int i = 0; i < ring->size; ++i) {
      const int before = (ring->next + ring->size - 1) % ring->size;
      if (positions_[static_cast<std::size_t>(ring->begin + before)] != kNoPosition) break;
      ring->next = before;
    }
  }
}

Status HiddenStates::Write(Ring& ring, std::span<const std::int32_t> wanted,
                           const EngineBatch& batch, Model& model) {
  while (!wanted.empty()) {
    const std::size_t count =
        std::min(wanted.size(), static_cast<std::size_t>(ring.size - ring.next));
    const auto row = static_cast<std::size_t>(ring.begin + ring.next);
    for (std::size_t i = 0; i < count; ++i) positions_[row + i] = kNoPosition;
    KVCACHE_RETURN_IF_ERROR(model.FinalStates(
        wanted.first(count), rows_.data() + static_cast<std::int64_t>(row) * hidden_size_));
    for (std::size_t i = 0; i < count; ++i) {
      positions_[row + i] = batch.positions[static_cast<std::size_t>(wanted[i])];
    }
    ring.next = (ring.next + static_cast<int>(count)) % ring.size;
    wanted = wanted.subspan(count);
  }
  return Status::Ok();
}

void HiddenStates::Forget(SequenceId sequence) {
  if (Knows(sequence)) ForgetFrom(sequence, 0);
}

void HiddenStates::Restored(SequenceId sequence, Position length, std::span<const float> last) {
  Forget(sequence);
  const bool is_row = static_cast<std::int64_t>(last.size()) == hidden_size_;
  if (!Knows(sequence) || length < 1 || !is_row) return;
  Ring& ring = latest_[static_cast<std::size_t>(Index(sequence))];
  const auto row = static_cast<std::size_t>(ring.begin + ring.next);
  float* const target = rows_.data() + static_cast<std::int64_t>(row) * hidden_size_;
  if (target != last.data()) std::copy(last.begin(), last.end(), target);
  positions_[row] = length - 1;
  ring.next = (ring.next + 1) % ring.size;
}

void HiddenStates::Copy(SequenceId from, SequenceId to) {
  if (!Knows(from) || !Knows(to) || from == to) return;
  const auto source = static_cast<std::ptrdiff_t>(FirstOf(from));
  const auto target = static_cast<std::ptrdiff_t>(FirstOf(to));
  std::copy_n(positions_.begin() + source, rows_of_each_, positions_.begin() + target);
  std::copy_n(rows_.begin() + source * hidden_size_, rows_of_each_ * hidden_size_,
              rows_.begin() + target * hidden_size_);
  latest_[static_cast<std::size_t>(Index(to))].next =
      latest_[static_cast<std::size_t>(Index(from))].next;
  marked_[static_cast<std::size_t>(Index(to))].next =
      marked_[static_cast<std::size_t>(Index(from))].next;
}

}  // namespace kvcache
