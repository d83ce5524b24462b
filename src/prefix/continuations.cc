#include "prefix/continuations.h"

#include <algorithm>
#include <new>

#include "base/keyed_hash.h"

namespace kvcache::prefix {
namespace {

constexpr std::size_t kFirstPlaces = std::size_t{1} << 10;
constexpr std::size_t kMaxPlaces = std::size_t{1} << 20;
constexpr int kMaxSteps = 64;  // from a node that is gone to one that is there

std::uint64_t Mixed(PrefixKey key) {
  return MixHash(key ^ ProcessHashKey(), kHashOdd1);
}

std::uint64_t PowerOfBase(std::size_t exponent) {
  std::uint64_t power = 1;
  for (; exponent > 0; --exponent) power *= kHashOdd2;
  return power;
}

// The place before the first key of a node is the end of its parent.
void Climb(const PrefixNode*& node, Position length) {
  while (!node->root() && length <= node->begin()) node = node->parent;
}

}  // namespace

// A sum of powers, so that a run of keys gets its hash from that of the run before it.
std::uint64_t Continuations::Finish(std::uint64_t sum, std::size_t length, std::uint64_t salt) {
  const std::uint64_t hash = MixHash(sum ^ kHashOdd1, salt ^ ProcessHashKey() ^ length);
  return hash == 0 ? 1 : hash;
}

void Continuations::Added(PrefixNode& node, std::uint64_t root_salt) {
  try {
    if (nodes_.size() >= max_nodes_) Clear();
    nodes_[node.number] = {.node = &node};
    std::vector<PrefixKey> before;  // the last keys before the node, the last one first
    const PrefixNode* above = node.parent;
    Position at = node.begin();
    while (at > 0 && before.size() < kLengths.front()) {
      Climb(above, at);
      --at;
      before.push_back(above->keys[static_cast<std::size_t>(at - above->begin())]);
    }
    for (const std::size_t length : kLengths) {
      const std::uint64_t last_power = PowerOfBase(length);
      std::uint64_t sum = 0;
      std::size_t summed = std::min(before.size(), length);
      for (std::size_t i = summed; i-- > 0;) sum = sum * kHashOdd2 + Mixed(before[i]);
      for (std::size_t i = 0; i < node.keys.size(); ++i) {
        if (summed == length) {
          Insert({.hash = Finish(sum, length, root_salt),
                  .salt = root_salt,
                  .number = node.number,
                  .length = node.begin() + static_cast<Position>(i)});
        }
        sum = sum * kHashOdd2 + Mixed(node.keys[i]);
        if (summed < length) {
          ++summed;
        } else {
          const PrefixKey first = i >= length ? node.keys[i - length] : before[length - 1 - i];
          sum -= Mixed(first) * last_power;
        }
      }
    }
  } catch (const std::bad_alloc&) {
    // What is not in the table is not found.
  }
}

void Continuations::Split(PrefixNode& upper) {
  try {
    nodes_[upper.number] = {.node = &upper};
  } catch (const std::bad_alloc&) {
    Clear();  // or it would be missing where it is looked for
  }
}

void Continuations::Replaced(std::uint64_t number, const PrefixNode& other) {
  const auto found = nodes_.find(number);
  if (found != nodes_.end()) found->second = {.node = nullptr, .other = other.number};
}

void Continuations::Clear() {
  places_.clear();
  used_ = 0;
  // Nodes that are there stay known: later keys may continue from them.
  std::erase_if(nodes_, [](const auto& entry) { return entry.second.node == nullptr; });
  max_nodes_ = std::max(max_nodes_, 2 * nodes_.size());
}

void Continuations::Insert(const Place& place) {
  if (used_ * 2 >= places_.size() && places_.size() < kMaxPlaces) Grow();
  Put(place);
}

// Looks at a few slots. If others have all of them, the first one is replaced.
void Continuations::Put(const Place& place) {
  Place* slot = &SlotOf(place.hash, 0);
  for (std::size_t step = 0; step < kSlots; ++step) {
    Place& other = SlotOf(place.hash, step);
    if (other.hash != 0 && other.hash != place.hash) continue;
    slot = &other;
    break;
  }
  used_ += slot->hash == 0 ? 1 : 0;
  *slot = place;
}

void Continuations::Grow() {
  std::vector<Place> larger(std::max(kFirstPlaces, 2 * places_.size()));
  used_ = 0;
  places_.swap(larger);
  for (const Place& place : larger) {
    if (place.hash != 0) Put(place);
  }
}

PrefixNode* Continuations::NodeOf(std::uint64_t number) const {
  for (int step = 0; step < kMaxSteps; ++step) {
    const auto found = nodes_.find(number);
    if (found == nodes_.end()) return nullptr;
    if (found->second.node != nullptr) return found->second.node;
    number = found->second.other;
  }
  return nullptr;
}

void Continuations::Find(std::span<const PrefixKey> text, std::size_t min, std::uint64_t salt,
                         std::size_t max, std::vector<PrefixKey>& keys) const {
  const std::size_t before = keys.size();
  for (const std::size_t length : kLengths) {
    if (length < min || length > text.size() || places_.empty()) continue;
    FindLast(text.last(length), salt, max, keys);
    if (keys.size() > before) return;
  }
}

void Continuations::FindLast(std::span<const PrefixKey> last, std::uint64_t salt, std::size_t max,
                             std::vector<PrefixKey>& keys) const {
  const std::size_t length = last.size();
  std::uint64_t sum = 0;
  for (const PrefixKey key : last) sum = sum * kHashOdd2 + Mixed(key);
  const std::uint64_t hash = Finish(sum, length, salt);
  std::size_t step = 0;
  while (step < kSlots && SlotOf(hash, step).hash != hash) ++step;
  if (step == kSlots) return;
  const Place& place = SlotOf(hash, step);
  if (place.salt != salt) return;
  const PrefixNode* node = NodeOf(place.number);
  if (node == nullptr || node->end < place.length) return;
  const PrefixNode* back = node;
  Position at = place.length;
  for (std::size_t i = length; i-- > 0;) {
    Climb(back, at);
    --at;
    if (back->root() || back->keys[static_cast<std::size_t>(at - back->begin())] != last[i]) return;
  }
  at = place.length;
  Climb(node, at + 1);
  while (max > 0) {
    if (at == node->end) {
      node = node->first_child;  // the newest
      if (node == nullptr) return;
    }
    const auto rest = std::span(node->keys).subspan(static_cast<std::size_t>(at - node->begin()));
    const auto some = rest.first(std::min(rest.size(), max));
    keys.insert(keys.end(), some.begin(), some.end());
    at += static_cast<Position>(some.size());
    max -= some.size();
  }
}

std::int64_t Continuations::bytes() const {
  return static_cast<std::int64_t>(places_.capacity() * sizeof(Place) +
                                   nodes_.size() * (sizeof(std::uint64_t) + sizeof(Known) + 16));
}

}  // namespace kvcache::prefix
