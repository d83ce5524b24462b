#include "prefix/prefix_trie.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace kvcache::prefix {
namespace {

constexpr int kChildrenLookedAt = 2;

}  // namespace

PrefixNode* PrefixTrie::FindRoot(std::uint64_t salt) const {
  const auto found = roots_.find(salt);
  return found == roots_.end() ? nullptr : found->second.get();
}

PrefixNode& PrefixTrie::Root(std::uint64_t salt) {
  std::unique_ptr<PrefixNode>& root = roots_[salt];
  if (root == nullptr) {
    root = std::make_unique<PrefixNode>();
    root->number = next_number_++;
  }
  return *root;
}

// Most nodes have few children. Looking at the first ones touches less memory than the table does.
PrefixNode* PrefixTrie::ChildOf(const PrefixNode& node, PrefixKey key) const {
  PrefixNode* child = node.first_child;
  for (int i = 0; i < kChildrenLookedAt && child != nullptr; ++i, child = child->next) {
    if (child->keys.front() == key) return child;
  }
  if (child == nullptr) return nullptr;
  const auto found = children_.find({&node, key});
  return found == children_.end() ? nullptr : found->second.get();
}

std::unique_ptr<PrefixNode> PrefixTrie::MakeNode() {
  auto node = std::make_unique<PrefixNode>();
  node->number = next_number_++;
  node->hook = policy_.Track(*node);
  return node;
}

PrefixTrie::Place PrefixTrie::Match(PrefixNode& root, std::span<const PrefixKey> keys) const {
  Place place{&root, 0};
  while (static_cast<std::size_t>(place.length) < keys.size()) {
    PrefixNode* const child = ChildOf(*place.node, keys[static_cast<std::size_t>(place.length)]);
    if (child == nullptr) break;
    const auto rest = keys.subspan(static_cast<std::size_t>(place.length));
    const std::size_t max = std::min(rest.size(), child->keys.size());
    const auto differs = std::mismatch(
        rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(max), child->keys.begin());
    const auto same = differs.first - rest.begin();
    place = {child, place.length + static_cast<Position>(same)};
    if (place.inside()) break;
  }
  return place;
}

void PrefixTrie::Link(PrefixNode& parent, PrefixNode& node) {
  node.parent = &parent;
  node.previous = nullptr;
  node.next = parent.first_child;
  if (node.next != nullptr) node.next->previous = &node;
  parent.first_child = &node;
}

void PrefixTrie::Unlink(PrefixNode& node) {
  (node.previous == nullptr ? node.parent->first_child : node.previous->next) = node.next;
  if (node.next != nullptr) node.next->previous = node.previous;
  node.next = node.previous = nullptr;
}

PrefixNode& PrefixTrie::AddLeaf(PrefixNode& parent, std::span<const PrefixKey> keys) {
  auto node = MakeNode();
  node->keys.assign(keys.begin(), keys.end());
  node->end = parent.end + static_cast<Position>(keys.size());
  PrefixNode& leaf = *node;
  children_.emplace(ChildKey{&parent, keys.front()}, std::move(node));
  Link(parent, leaf);
  tokens_ += static_cast<std::int64_t>(keys.size());
  return leaf;
}

PrefixNode& PrefixTrie::Split(PrefixNode& node, Position length) {
  const auto count = static_cast<std::size_t>(length - node.begin());
  auto upper = MakeNode();
  upper->keys.assign(node.keys.begin(), node.keys.begin() + static_cast<std::ptrdiff_t>(count));
  std::vector<PrefixKey> rest(node.keys.begin() + static_cast<std::ptrdiff_t>(count),
                              node.keys.end());
  upper->end = length;
  upper->used = node.used;
  policy_.Divide(*upper, node);
  PrefixNode& added = *upper;
  // The table's entry of the parent becomes the upper node; the lower one gets an entry of its own.
  const auto [slot, inserted] = children_.try_emplace(ChildKey{&added, rest.front()});
  (void)inserted;
  std::unique_ptr<PrefixNode>& entry = children_.find({node.parent, node.keys.front()})->second;
  slot->second = std::move(entry);
  entry = std::move(upper);
  PrefixNode& parent = *node.parent;
  Unlink(node);
  Link(parent, added);
  Link(added, node);
  node.keys = std::move(rest);
  return added;
}

void PrefixTrie::RemoveLeaf(PrefixNode& node) {
  tokens_ -= static_cast<std::int64_t>(node.keys.size());
  Unlink(node);
  children_.erase({node.parent, node.keys.front()});
}

void PrefixTrie::ShortenLeaf(PrefixNode& node, Position length) {
  const auto count = static_cast<std::size_t>(length - node.begin());
  tokens_ -= static_cast<std::int64_t>(node.keys.size() - count);
  node.keys.resize(count);
  node.keys.shrink_to_fit();
  node.end = length;
}

void PrefixTrie::MergeIntoChild(PrefixNode& node) {
  PrefixNode& child = *node.first_child;
  std::vector<PrefixKey> keys;
  keys.reserve(node.keys.size() + child.keys.size());
  keys.insert(keys.end(), node.keys.begin(), node.keys.end());
  keys.insert(keys.end(), child.keys.begin(), child.keys.end());
  const auto lower = children_.find({&node, child.keys.front()});
  std::unique_ptr<PrefixNode> kept = std::move(lower->second);
  children_.erase(lower);
  PrefixNode& parent = *node.parent;
  Unlink(child);
  Unlink(node);
  Link(parent, child);
  child.keys = std::move(keys);
  children_.find({&parent, child.keys.front()})->second = std::move(kept);  // destroys `node`
}

std::int64_t PrefixTrie::bytes() const {
  constexpr std::int64_t kNode = sizeof(PrefixNode) +
                                 sizeof(std::pair<ChildKey, std::unique_ptr<PrefixNode>>) +
                                 2 * sizeof(void*);
  return nodes() * kNode + static_cast<std::int64_t>(children_.bucket_count() * sizeof(void*)) +
         tokens_ * static_cast<std::int64_t>(sizeof(PrefixKey));
}

std::string PrefixTrie::Check() const {
  std::string broken;
  std::int64_t tokens = 0;
  std::int64_t nodes = 0;
  const auto rule = [&](const PrefixNode& node, std::string_view text) {
    if (broken.empty())
      broken = StrCat("node ", node.number, " [", node.begin(), ", ", node.end, "): ", text);
  };
  ForEach([&](const PrefixNode& node) {
    tokens += static_cast<std::int64_t>(node.keys.size());
    ++nodes;
    if (node.keys.empty()) return rule(node, "no keys");
    if (node.begin() != node.parent->end) rule(node, "does not begin where its parent ends");
    if (ChildOf(*node.parent, node.keys.front()) != &node)
      rule(node, "is not found by its first key");
    if (node.next != nullptr && node.next->previous != &node) rule(node, "siblings are not linked");
  });
  if (broken.empty() && tokens != tokens_) broken = StrCat(tokens, " tokens, counted ", tokens_);
  if (broken.empty() && nodes != this->nodes())
    broken = StrCat(nodes, " nodes, counted ", this->nodes());
  return broken;
}

}  // namespace kvcache::prefix
