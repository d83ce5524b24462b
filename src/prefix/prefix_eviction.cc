// What is evicted, and what is kept on purpose.
#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "prefix/prefix_cache_impl.h"

namespace kvcache::prefix {
namespace {

constexpr Position kMinLeft = 32;  // tokens of an edge that are worth a node

}  // namespace

std::int64_t PrefixCacheImpl::Evict(std::int64_t tokens) {
  ExpirePins();
  std::int64_t removed = 0;
  do {
    PrefixNode* const node = policy_->Next(trie_.tokens());
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
  if (options_.divisible && size - cut >= kMinLeft &&
      states_.Truncate(leaf.state, leaf.end - cut)) {
    trie_.ShortenLeaf(leaf, leaf.end - cut);
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
  const std::int64_t before = evicted_;
  MergeIfAlone(RemoveStateless(&leaf));
  return evicted_ - before;
}

void PrefixCacheImpl::EvictInner(PrefixNode& node) {
  DropState(node);
  MergeIfAlone(&node);
}

PrefixNode* PrefixCacheImpl::RemoveStateless(PrefixNode* node) {
  while (!node->root() && node->leaf() && node->state == PrefixState::kNone && node->live == 0) {
    PrefixNode* const parent = node->parent;
    evicted_ += static_cast<std::int64_t>(node->keys.size());
    std::erase_if(pins_, [&](const auto& pin) { return pin.second == node; });
    policy_->Offer(*node, false);
    if (options_.finds_continuations) continuations_.Replaced(node->number, *parent);
    trie_.RemoveLeaf(*node);
    Relist(*parent);
    node = parent;
  }
  return node;
}

// A node that nobody needs by itself becomes a part of its only child, if the request that used it last used the child
// as well: each turn of a chat adds a node, and all of them are used with the last one. A node that was used later
// than its child stays, because the child's end can go first.
void PrefixCacheImpl::MergeIfAlone(PrefixNode* node) {
  if (node->root() || node->leaf() || !node->first_child->only_child()) return;
  PrefixNode& child = *node->first_child;
  const bool plain = node->live == 0 && node->state == PrefixState::kNone &&
                     node->pinned_until <= now_ && node->used == child.used;
  if (!plain) return;
  std::erase_if(pins_, [&](const auto& pin) { return pin.second == node; });
  policy_->Offer(*node, false);
  policy_->Merge(*node, child);
  const std::uint64_t number = node->number;
  try {
    trie_.MergeIntoChild(*node);
    if (options_.finds_continuations) continuations_.Replaced(number, child);
  } catch (const std::bad_alloc&) {
    // The node stays.
  }
  Relist(child);
}

void PrefixCacheImpl::MergeUpwards(PrefixNode* node) {
  while (!node->root()) {
    PrefixNode* const parent = node->parent;
    MergeIfAlone(node);
    node = parent;
  }
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

PrefixStats PrefixCacheImpl::Stats() const {
  return {.tokens = trie_.tokens(),
          .nodes = trie_.nodes(),
          .states = state_count_,
          .evicted_tokens = evicted_,
          .bytes = trie_.bytes() + policy_->BytesFor(trie_.nodes()) + continuations_.bytes()};
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
    std::sort(next.begin() + first, next.end(), [](const PrefixNode* a, const PrefixNode* b) {
      return std::pair(a->used, a->number) < std::pair(b->used, b->number);
    });
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
    const bool listed = policy_->IsOffered(node);
    if (!listed && MayGo(node) && !was_pinned) rule = "may go and is not listed";
    if (listed && !MayGo(node)) rule = "is in use and listed";
    if (!rule.empty() && broken.empty()) broken = StrCat("node ending at ", node.end, " ", rule);
  });
  if (broken.empty() && states != state_count_) {
    broken = StrCat(states, " states, counted ", state_count_);
  }
  return broken;
}

}  // namespace kvcache::prefix
