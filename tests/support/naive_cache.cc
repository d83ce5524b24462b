#include "support/naive_cache.h"

#include <set>
#include <utility>

namespace kvcache::testing {

std::int64_t NaiveCache::used_cells() const {
  std::set<const NaiveToken*> tokens;
  for (const Sequence& sequence : sequences_) {
    for (const auto& [position, token] : sequence) tokens.insert(token.get());
  }
  return static_cast<std::int64_t>(tokens.size());
}

Position NaiveCache::length(int sequence) const {
  const Sequence& tokens = sequences_[sequence];
  return tokens.empty() ? 0 : tokens.rbegin()->first + 1;
}

bool NaiveCache::MayBegin(const std::vector<TestToken>& batch) const {
  if (batch.empty() || batch.size() > static_cast<std::size_t>(options_.max_batch)) return false;
  for (const TestToken& token : batch) {
    if (!Known(token.sequence) || token.position < 0 || token.position == kEndOfSequence) {
      return false;
    }
  }
  return true;
}

StatusCode NaiveCache::StartForward(const std::vector<TestToken>& batch, ForwardMode mode) {
  if (!MayBegin(batch)) return StatusCode::kInvalidArgument;
  if (mode == ForwardMode::kCompute) {
    std::set<std::pair<int, Position>> added;
    for (const TestToken& token : batch) {
      const bool held = sequences_[token.sequence].count(token.position) != 0;
      if (held || !added.insert({token.sequence, token.position}).second) {
        return StatusCode::kInvalidArgument;
      }
    }
    if (used_cells() + static_cast<std::int64_t>(batch.size()) > options_.cells) {
      return StatusCode::kCacheFull;
    }
  }
  batch_.clear();
  queries_.clear();
  in_pass_ = true;
  reserving_ = mode == ForwardMode::kReserve;
  for (const TestToken& token : batch) {
    queries_.push_back({token.sequence, token.position});
    if (reserving_) continue;
    auto made = std::make_shared<NaiveToken>();
    made->layers.resize(options_.layers);
    sequences_[token.sequence][token.position] = made;
    batch_.push_back(std::move(made));
  }
  return StatusCode::kOk;
}

void NaiveCache::Put(int layer, const std::vector<std::optional<NaiveContent>>& contents) {
  for (std::size_t i = 0; i < batch_.size(); ++i) batch_[i]->layers[layer] = contents[i];
}

StatusCode NaiveCache::CopyPrefix(int src, int dst, Position length) {
  if (!Known(src) || !Known(dst) || length < 0) return StatusCode::kInvalidArgument;
  EndPass();
  Sequence shared;
  for (const auto& [position, token] : sequences_[src]) {
    if (position < length) shared[position] = token;
  }
  sequences_[dst] = std::move(shared);
  return StatusCode::kOk;
}

StatusCode NaiveCache::CheckMiddle(int sequence, Position end) const {
  if (!options_.can_shift) return StatusCode::kUnsupported;
  std::int64_t needed = 0;
  for (const auto& [position, token] : sequences_[sequence]) {
    needed += position >= end && token.use_count() > 1;
  }
  return needed > options_.cells - used_cells() ? StatusCode::kCacheFull : StatusCode::kOk;
}

bool NaiveCache::CanResume(int sequence, Position position) const {
  return Known(sequence) && position >= 0 && position <= length(sequence);
}

}  // namespace kvcache::testing
