// What is let go of, and what is kept on purpose.
#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "prefix/key_hash.h"
#include "prefix/prefix_cache_impl.h"

namespace kvcache {
namespace {

constexpr Position kLeastLeft = 32;  // tokens of an edge that are worth a node

}  // namespace

std::int64_t PrefixCacheImpl::Evict(std::int64_t tokens) {
  ExpirePins();
  std::int64_t removed = 0;
  do {
    PrefixNode* const node = order_.Least(history_);
    if (node == nullptr) return removed > 0 ? removed : -1;
    if (node->leaf()) {
      removed += EvictLeaf(*node, tokens - removed);
    } else {
      EvictInner(*node);
      return removed;
    }
  } while (removed < tokens);
  return removed;
}

// A divisible state goes from its end. What is left of it belongs to the shorter leaf, or to the
// parent, if that has no other child.
std::int64_t PrefixCacheImpl::EvictLeaf(PrefixNode& leaf, std::int64_t tokens) {
  const auto size = static_cast<Position>(leaf.keys.size());
  const auto cut = static_cast<Position>(std::clamp<std::int64_t>(tokens, 1, size));
  if (options_.divisible && size - cut >= kLeastLeft &&
      states_.Truncate(leaf.state, leaf.end - cut)) {
    const Prefix before{leaf.hash, leaf.end};
    trie_.ShortenLeaf(leaf, leaf.end - cut);
    Report(PrefixEvent::Kind::kRemoved, {leaf.hash, leaf.end}, before);
    evicted_ += cut;
    return cut;
  }
  PrefixNode* const parent = leaf.parent;
  const bool hands_over = options_.divisible && !parent->root() && leaf.only_child() &&
                          states_.Truncate(leaf.state, parent->end);
  if (hands_over) {
    parent->state = std::exchange(leaf.state, PrefixState::kNone);
  } else {
    DropState(leaf);
  }
  return RemoveStateless(&leaf);
}

void PrefixCacheImpl::EvictInner(PrefixNode& node) {
  DropState(node);
  MergeIfAlone(&node);
}

std::int64_t PrefixCacheImpl::RemoveStateless(PrefixNode* node) {
  std::int64_t removed = 0;
  while (!node->root() && node->leaf() && node->state == PrefixState::kNone && node->live == 0) {
    PrefixNode* const parent = node->parent;
    Report(PrefixEvent::Kind::kRemoved, {parent->hash, parent->end}, {node->hash, node->end});
    removed += static_cast<std::int64_t>(node->keys.size());
    std::erase_if(pins_, [&](const auto& pin) { return pin.second == node; });
    order_.Update(*node, false);
    if (options_.finds_continuations) continuations_.Replaced(node->number, *parent);
    trie_.RemoveLeaf(*node);
    Relist(*parent);
    node = parent;
  }
  evicted_ += removed;
  MergeIfAlone(node);
  return removed;
}

// A node that nobody needs by itself becomes a part of its only child. It must have been used with it,
// since a node has one time of use.
void PrefixCacheImpl::MergeIfAlone(PrefixNode* node) {
  if (node->root() || node->leaf() || !node->first_child->only_child()) return;
  PrefixNode& child = *node->first_child;
  const bool plain = node->live == 0 && node->state == PrefixState::kNone &&
                     node->pinned_until <= now_ && node->group == child.group;
  if (!plain) return;
  std::erase_if(pins_, [&](const auto& pin) { return pin.second == node; });
  order_.Update(*node, false);
  const std::uint64_t number = node->number;
  try {
    trie_.MergeIntoChild(*node);
  } catch (const std::bad_alloc&) {
    return;  // the node stays
  }
  if (options_.finds_continuations) continuations_.Replaced(number, child);
  Relist(child);
}

void PrefixCacheImpl::ExpirePins() {
  while (!pins_.empty() && pins_.begin()->first <= now_) {
    PrefixNode* const node = pins_.begin()->second;
    pins_.erase(pins_.begin());
    Relist(*node);
  }
}

Position PrefixCacheImpl::Pin(const PrefixPrompt& prompt, double until) {
  PrefixNode* const root = trie_.FindRoot(prompt.salt);
  if (root == nullptr) return 0;
  const PrefixTrie::Place place = trie_.Match(*root, prompt.keys);
  PrefixNode* node = place.node;
  try {
    if (options_.divisible) {
      if (place.inside()) node = &SplitAt(*node, place.length);
    } else {
      if (place.inside()) node = node->parent;
      while (!node->root() && node->state == PrefixState::kNone) node = node->parent;
    }
    if (node->root()) return 0;
    const auto own = pins_.emplace(until, node);
    std::erase_if(pins_, [&](const auto& pin) { return pin.second == node && &pin != &*own; });
  } catch (const std::bad_alloc&) {
    return 0;
  }
  node->pinned_until = until;
  Relist(*node);
  return node->end;
}

Position PrefixCacheImpl::Demote(const PrefixPrompt& prompt) {
  PrefixNode* const root = trie_.FindRoot(prompt.salt);
  if (root == nullptr) return 0;
  const PrefixTrie::Place place = trie_.Match(*root, prompt.keys);
  const auto demote = [&](PrefixNode& node) {
    node.demoted = true;
    node.retention = Retention::kNormal;
    node.pinned_until = kNeverPinned;
    std::erase_if(pins_, [&](const auto& pin) { return pin.second == &node; });
    Relist(node);
  };
  if (place.node->root()) return 0;
  // The node and everything below it.
  PrefixNode* node = place.node;
  while (true) {
    demote(*node);
    if (!node->leaf()) {
      node = node->first_child;
      continue;
    }
    while (node != place.node && node->next == nullptr) node = node->parent;
    if (node == place.node) break;
    node = node->next;
  }
  return place.length;
}

PrefixStats PrefixCacheImpl::Stats() const {
  return {.tokens = trie_.tokens(),
          .nodes = trie_.nodes(),
          .states = state_count_,
          .evicted_tokens = evicted_,
          .bytes = trie_.bytes() + history_.bytes() + continuations_.bytes()};
}

void PrefixCacheImpl::Visit(std::uint64_t salt,
                            const std::function<bool(const PrefixNodeView&)>& visit) const {
  const PrefixNode* const root = trie_.FindRoot(salt);
  if (root == nullptr) return;
  std::vector<const PrefixNode*> next;  // a stack
  // Returns how many they are.
  const auto add_children = [&](const PrefixNode& node) {
    const auto first = std::ssize(next);
    for (const PrefixNode* child = node.first_child; child != nullptr; child = child->next) {
      next.push_back(child);
    }
    std::sort(next.begin() + first, next.end(),
              [](const PrefixNode* a, const PrefixNode* b) { return UsedBefore()(a, b); });
    return static_cast<std::int32_t>(std::ssize(next) - first);
  };
  add_children(*root);
  while (!next.empty()) {
    const PrefixNode& node = *next.back();
    next.pop_back();
    const PrefixNodeView view{.number = node.number,
                              .parent = node.parent == root ? 0 : node.parent->number,
                              .keys = node.keys,
                              .begin = node.begin(),
                              .end = node.end,
                              .has_state = node.state != PrefixState::kNone,
                              .live = node.live,
                              .pinned = node.pinned_until > now_,
                              .children = add_children(node)};
    if (!visit(view)) return;
  }
}

std::string PrefixCacheImpl::CheckStructure() const {
  std::string broken = trie_.Check();
  std::int64_t states = 0;
  trie_.ForEach([&](const PrefixNode& node) {
    const bool has_state = node.state != PrefixState::kNone;
    states += has_state ? 1 : 0;
    std::string_view rule;
    if (node.leaf() && !has_state && node.live == 0) rule = "a leaf has no state";
    if (options_.divisible && !node.leaf() && has_state) rule = "an inner node has a state";
    // A pin that has expired is noticed by the next Evict.
    const bool was_pinned = node.pinned_until > kNeverPinned;
    const bool listed = node.eviction.listed();
    if (!listed && MayGo(node) && !was_pinned) rule = "may go and is not listed";
    if (listed && !MayGo(node)) rule = "is in use and listed";
    if (!rule.empty() && broken.empty()) broken = StrCat("node ending at ", node.end, " ", rule);
  });
  if (broken.empty() && states != state_count_) {
    broken = StrCat(states, " states, counted ", state_count_);
  }
  return broken;
}

}  // namespace kvcache
