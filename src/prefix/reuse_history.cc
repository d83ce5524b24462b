#include "prefix/reuse_history.h"

#include <algorithm>
#include <cmath>

#include "prefix/key_hash.h"
#include "prefix/use_class.h"

namespace kvcache {
namespace {

constexpr std::size_t kMostGroups = 8192;
constexpr int kUsesPerRefresh = 20;

}  // namespace

ReuseHistory::ReuseHistory(std::int64_t max_tokens)
    : rates_(kUseClasses, kUseFamilies),
      max_chunks_(std::max<std::int64_t>(1, max_tokens / kChunk)) {
  for (int c = 0; c < kUseClasses; ++c) rates_.SetFamily(c, FamilyOf(c));
}

ReuseHistory::Group* ReuseHistory::Find(UseGroup group) {
  const std::int64_t index = static_cast<std::int64_t>(group) - first_group_;
  if (index < 0 || index >= static_cast<std::int64_t>(groups_.size())) return nullptr;
  return &groups_[static_cast<std::size_t>(index)];
}

struct ReuseHistory::Use ReuseHistory::Of(UseGroup group) const {
  const std::int64_t index = static_cast<std::int64_t>(group) - first_group_;
  if (index < 0 || index >= static_cast<std::int64_t>(groups_.size())) return {};
  const Group& found = groups_[static_cast<std::size_t>(index)];
  return {found.of_class, found.time};
}

// The waiting of a group is counted in one piece, when something of it returns and now and then.
void ReuseHistory::CountWait(Group& group) {
  if (group.left > 0.0 && group.counted < clock_) {
    rates_.CountWait(group.of_class, group.counted - group.time, clock_ - group.time,
                     group.left / group.size);
  }
  group.counted = clock_;
}

ReuseHistory::Seen ReuseHistory::Find(std::span<const PrefixKey> keys, std::uint64_t salt) const {
  Seen seen;
  std::uint64_t hash = KeyHashOf(salt);
  for (std::size_t at = 0; at + kChunk <= keys.size(); at += kChunk) {
    hash = AddKeys(hash, keys.subspan(at, kChunk));
    const auto found = chunks_.find(hash);
    if (found == chunks_.end()) break;
    seen.known = static_cast<Position>(at) + kChunk;
    seen.wait = clock_ - found->second.time;
    seen.uses = found->second.uses;
  }
  return seen;
}

ReuseHistory::Seen ReuseHistory::Return(std::span<const PrefixKey> keys, std::uint64_t salt) {
  Seen seen;
  std::uint64_t hash = KeyHashOf(salt);
  for (std::size_t at = 0; at + kChunk <= keys.size(); at += kChunk) {
    hash = AddKeys(hash, keys.subspan(at, kChunk));
    const auto found = chunks_.find(hash);
    if (found == chunks_.end()) break;
    Chunk& chunk = found->second;
    seen.known = static_cast<Position>(at) + kChunk;
    seen.wait = clock_ - chunk.time;
    seen.uses = chunk.uses;
    if (Group* const group = Find(chunk.group); group != nullptr) {
      CountWait(*group);
      rates_.CountReturn(group->of_class, clock_ - group->time, kChunk / group->size);
      group->left -= kChunk;
    }
    chunk.group = UseGroup::kNone;
  }
  return seen;
}

std::vector<ReuseHistory::GroupAt> ReuseHistory::Use(std::span<const PrefixKey> keys,
                                                     std::uint64_t salt, Position answer,
                                                     Retention retention) {
  std::vector<GroupAt> result;
  std::uint64_t hash = KeyHashOf(salt);
  std::int32_t uses_of_group = 0;
  const auto start = [&](Position begin, std::int32_t uses, double gap) {
    groups_.push_back({.of_class = UseClassOf(uses, gap, answer, retention),
                       .time = clock_,
                       .counted = clock_,
                       .left = 0.0,
                       .size = 0.0});
    const auto number = first_group_ + static_cast<std::int64_t>(groups_.size()) - 1;
    result.push_back({begin, UseGroup{number}});
    uses_of_group = uses;
  };
  for (std::size_t at = 0; at + kChunk <= keys.size(); at += kChunk) {
    hash = AddKeys(hash, keys.subspan(at, kChunk));
    const auto [found, inserted] = chunks_.try_emplace(hash);
    Chunk& chunk = found->second;
    if (inserted) order_.push_back(hash);
    if (!inserted) chunk.gap = clock_ - chunk.time;
    chunk.time = clock_;
    ++chunk.uses;
    const std::int32_t uses = std::min(chunk.uses, kMostUses);
    if (result.empty() || uses != uses_of_group) start(static_cast<Position>(at), uses, chunk.gap);
    if (Group* const group = Find(chunk.group); group != nullptr) group->left -= kChunk;
    chunk.group = result.back().group;
    groups_.back().left += kChunk;
    groups_.back().size += kChunk;
  }
  if (result.empty()) start(0, 1, 0.0);
  if (++uses_since_refresh_ >= kUsesPerRefresh) {
    uses_since_refresh_ = 0;
    for (Group& group : groups_) CountWait(group);
    Forget();
    rates_.Refresh();
  }
  return result;
}

// Chunks that came back lately get another round.
void ReuseHistory::Forget() {
  const double recent = clock_ - static_cast<double>(max_chunks_) * kChunk / 2;
  for (std::size_t turns = order_.size();
       turns > 0 && static_cast<std::int64_t>(order_.size()) > max_chunks_; --turns) {
    const std::uint64_t hash = order_.front();
    order_.pop_front();
    const auto found = chunks_.find(hash);
    if (found == chunks_.end()) continue;
    if (found->second.time > recent && found->second.uses > 1) {
      order_.push_back(hash);
      continue;
    }
    if (Group* const group = Find(found->second.group); group != nullptr) group->left -= kChunk;
    chunks_.erase(found);
  }
  while (groups_.size() > kMostGroups || (!groups_.empty() && groups_.front().left <= 0.0)) {
    groups_.pop_front();
    ++first_group_;
  }
}

void ReuseHistory::Supersede(UseGroup group) {
  Group* const found = Find(group);
  if (found == nullptr || !CanBeSuperseded(found->of_class)) return;
  CountWait(*found);
  found->of_class = kSupersededClass;
}

std::int64_t ReuseHistory::bytes() const {
  constexpr std::int64_t kNode = sizeof(std::pair<std::uint64_t, Chunk>) + 2 * sizeof(void*);
  return static_cast<std::int64_t>(chunks_.size()) * kNode +
         static_cast<std::int64_t>(chunks_.bucket_count() * sizeof(void*)) +
         static_cast<std::int64_t>(order_.size() * sizeof(std::uint64_t)) +
         static_cast<std::int64_t>(groups_.size() * sizeof(Group));
}

}  // namespace kvcache
