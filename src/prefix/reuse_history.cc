#include "prefix/reuse_history.h"

#include <algorithm>
#include <utility>

#include "prefix/key_hash.h"

namespace kvcache::prefix {
namespace {

constexpr std::size_t kMaxGroups = 8192;
constexpr int kUsesPerRefresh = 20;
constexpr double kMinLateShare = 0.05;  // of the returns, for rates other than those of age
constexpr double kKeptCounts = 0.98;    // of the returns, at a refresh

// Returns the hash of a prefix with a chunk behind it. Four lanes, whose steps do not wait for each other.
std::uint64_t AddChunk(std::uint64_t hash, std::span<const PrefixKey, ReuseHistory::kChunk> keys) {
  constexpr std::size_t kLanes = 4;
  std::uint64_t lanes[kLanes] = {hash, hash + 1, hash + 2, hash + 3};
  for (std::size_t i = 0; i < keys.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = AddKey(lanes[lane], keys[i + lane]);
    }
  }
  for (const std::uint64_t lane : lanes) hash = AddKey(hash, lane);
  return hash;
}

// Calls `visit` with the hash of each whole chunk, until it returns false. Returns the keys of the chunks before.
template <class Visit>
Position ForEachChunk(std::span<const PrefixKey> keys, std::uint64_t salt, Visit&& visit) {
  std::uint64_t hash = KeyHashOf(salt);
  std::size_t at = 0;
  for (; at + ReuseHistory::kChunk <= keys.size(); at += ReuseHistory::kChunk) {
    hash = AddChunk(hash, keys.subspan(at).first<ReuseHistory::kChunk>());
    if (!visit(hash)) break;
  }
  return static_cast<Position>(at);
}

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

// The waiting of a group is counted in one piece, when something of it returns and now and then.
void ReuseHistory::CountWait(Group& group) {
  if (group.left > 0.0 && group.counted < clock_) {
    rates_.CountWait(group.of_class, group.counted - group.time, clock_ - group.time,
                     group.left / group.size);
  }
  group.counted = clock_;
}

Position ReuseHistory::Find(std::span<const PrefixKey> keys, std::uint64_t salt) const {
  return ForEachChunk(keys, salt, [&](std::uint64_t hash) { return chunks_.contains(hash); });
}

Position ReuseHistory::Return(std::span<const PrefixKey> keys, std::uint64_t salt) {
  UseGroup group = UseGroup::kNone;  // of the chunks before, and how many tokens they have
  double tokens = 0.0;
  const Position known = ForEachChunk(keys, salt, [&](std::uint64_t hash) {
    const auto found = chunks_.find(hash);
    if (found == chunks_.end()) return false;
    const UseGroup of_chunk = std::exchange(found->second.group, UseGroup::kNone);
    if (of_chunk != group) {
      CountReturn(group, tokens);
      group = of_chunk;
      tokens = 0.0;
    }
    tokens += kChunk;
    return true;
  });
  CountReturn(group, tokens);
  return known;
}

void ReuseHistory::CountReturn(UseGroup number, double tokens) {
  Group* const group = Find(number);
  if (group == nullptr) return;
  CountWait(*group);
  rates_.CountReturn(group->of_class, clock_ - group->time, tokens / group->size);
  const bool is_recent = static_cast<std::int64_t>(number) >= first_recent_;
  (is_recent ? recent_returns_ : late_returns_) += tokens;
  Leave(number, tokens);
}

void ReuseHistory::Leave(UseGroup number, double tokens) {
  Group* const group = Find(number);
  if (group == nullptr) return;
  group->left -= tokens;
  if (static_cast<std::int64_t>(number) >= first_recent_) recent_ -= tokens;
}

void ReuseHistory::LimitRecent() {
  const std::int64_t end = first_group_ + std::ssize(groups_);
  for (; recent_ > held_ && first_recent_ < end; ++first_recent_) {
    if (const Group* const group = Find(UseGroup{first_recent_})) recent_ -= group->left;
  }
}

void ReuseHistory::Refresh() {
  for (Group& group : groups_) CountWait(group);
  Forget();
  const bool by_age = late_returns_ <= kMinLateShare * recent_returns_;
  rates_.Refresh(by_age ? ReturnRates::Basis::kAge : ReturnRates::Basis::kCounts);
  recent_returns_ *= kKeptCounts;
  late_returns_ *= kKeptCounts;
}

std::vector<ReuseHistory::GroupAt> ReuseHistory::Use(std::span<const PrefixKey> keys,
                                                     std::uint64_t salt, PrefixUse use) {
  // First, so that the groups of this use are there when it ends.
  if (++uses_since_refresh_ >= kUsesPerRefresh) {
    uses_since_refresh_ = 0;
    Refresh();
  }
  std::vector<GroupAt> result;
  std::uint64_t hash = KeyHashOf(salt);
  const auto start = [&](Position begin) {
    groups_.push_back(
        {.of_class = UseClassOf(use), .time = clock_, .counted = clock_, .left = 0.0, .size = 0.0});
    result.push_back({begin, groups_.back().of_class});
  };
  for (std::size_t at = 0; at + kChunk <= keys.size(); at += kChunk) {
    hash = AddChunk(hash, keys.subspan(at).first<kChunk>());
    auto found = chunks_.find(hash);
    if (found == chunks_.end()) {
      order_.push_back(hash);  // first: Forget passes over hashes without a chunk, not the reverse
      found = chunks_.try_emplace(hash).first;
    }
    Chunk& chunk = found->second;
    chunk.time = clock_;
    ++chunk.uses;
    const std::int32_t uses = std::min(chunk.uses, kUseFamilies);
    if (result.empty() || uses != use.uses) {
      use.uses = uses;
      start(static_cast<Position>(at));
    }
    Leave(chunk.group, kChunk);
    chunk.group = UseGroup{first_group_ + std::ssize(groups_) - 1};
    groups_.back().left += kChunk;
    recent_ += kChunk;
    groups_.back().size += kChunk;
  }
  if (result.empty()) {
    use.uses = 1;
    start(0);
  }
  LimitRecent();
  return result;
}

// Chunks that came back lately get another round.
void ReuseHistory::Forget() {
  const double recent = clock_ - static_cast<double>(max_chunks_) * kChunk / 2;
  for (std::size_t turns = order_.size();
       turns > 0 && static_cast<std::int64_t>(order_.size()) > max_chunks_; --turns) {
    const std::uint64_t hash = order_.front();
    const auto found = chunks_.find(hash);
    const bool known = found != chunks_.end();
    const bool stays = known && found->second.time > recent && found->second.uses > 1;
    if (stays) order_.push_back(hash);
    order_.pop_front();
    if (!known || stays) continue;
    Leave(found->second.group, kChunk);
    chunks_.erase(found);
  }
  while (groups_.size() > kMaxGroups || (!groups_.empty() && groups_.front().left <= 0.0)) {
    if (first_recent_ <= first_group_) {
      first_recent_ = first_group_ + 1;
      recent_ -= groups_.front().left;
    }
    groups_.pop_front();
    ++first_group_;
  }
}

std::int64_t ReuseHistory::bytes() const {
  constexpr std::int64_t kNode = sizeof(std::pair<std::uint64_t, Chunk>) + 2 * sizeof(void*);
  return static_cast<std::int64_t>(chunks_.size()) * kNode +
         static_cast<std::int64_t>(chunks_.bucket_count() * sizeof(void*)) +
         static_cast<std::int64_t>(order_.size() * sizeof(std::uint64_t)) +
         static_cast<std::int64_t>(groups_.size() * sizeof(Group));
}

}  // namespace kvcache::prefix
