// The structure of the trie: roots by salt, nodes, and a table from (node, key) to the child.
//
// Children of a node never share their first key. A node other than a root has at least one key.
//
// Thread safety: that of the PrefixCache that owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "base/keyed_hash.h"
#include "prefix/prefix_node.h"

namespace kvcache::prefix {

class PrefixTrie {
 public:
  // A place in the trie: `length` keys from the root, in the edge of `node` or at its end.
  struct Place {
    PrefixNode* node = nullptr;
    Position length = 0;
    bool inside() const { return length < node->end; }
  };

  // `policy` must outlive it. It tracks all nodes but the roots.
  explicit PrefixTrie(EvictionPolicy& policy) : policy_(policy) {}
  PrefixTrie(const PrefixTrie&) = delete;
  PrefixTrie& operator=(const PrefixTrie&) = delete;

  // What allocates may throw std::bad_alloc: Root, AddLeaf, Split, MergeIntoChild. Nothing has changed then.

  // Returns the root of a salt, or null before Root made it.
  PrefixNode* FindRoot(std::uint64_t salt) const;
  PrefixNode& Root(std::uint64_t salt);

  // Follows the keys from a root as far as they match.
  Place Match(PrefixNode& root, std::span<const PrefixKey> keys) const;
  PrefixNode* ChildOf(const PrefixNode& node, PrefixKey key) const;

  // Adds a leaf below `parent`. REQUIRES: at least one key; no child has the first one.
  PrefixNode& AddLeaf(PrefixNode& parent, std::span<const PrefixKey> keys);
  // Divides the edge of `node` and returns the new node, which ends at `length` and is the parent of
  // `node`. It has the same use. REQUIRES: begin < length < end.
  PrefixNode& Split(PrefixNode& node, Position length);
  // Removes a leaf that is not a root. REQUIRES: it is not offered to the policy.
  void RemoveLeaf(PrefixNode& node);
  // Shortens a leaf's edge to `length`. REQUIRES: begin < length < end.
  void ShortenLeaf(PrefixNode& node, Position length);
  // Puts the keys of `node` in front of those of its only child, and removes it.
  void MergeIntoChild(PrefixNode& node);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t nodes() const { return static_cast<std::int64_t>(children_.size()); }
  std::int64_t bytes() const;

  // Calls f for every node but the roots, parents first.
  template <class F>
  void ForEach(F&& f) const {
    for (const auto& [salt, root] : roots_) {
      PrefixNode* node = root->first_child;
      while (node != nullptr) {
        f(*node);
        if (!node->leaf()) {
          node = node->first_child;
          continue;
        }
        while (node != root.get() && node->next == nullptr) node = node->parent;
        node = node == root.get() ? nullptr : node->next;
      }
    }
  }
  // Returns the first rule that is broken, or an empty text.
  std::string Check() const;

 private:
  struct ChildKey {
    const PrefixNode* parent;
    PrefixKey key;
    bool operator==(const ChildKey&) const = default;
  };
  struct Hash {
    std::size_t operator()(const ChildKey& child) const {
      return MixHash(reinterpret_cast<std::uintptr_t>(child.parent) ^ ProcessHashKey(),
                     child.key ^ kHashOdd1);
    }
  };

  static void Link(PrefixNode& parent, PrefixNode& node);
  static void Unlink(PrefixNode& node);

  std::unique_ptr<PrefixNode> MakeNode();

  EvictionPolicy& policy_;
  std::unordered_map<std::uint64_t, std::unique_ptr<PrefixNode>> roots_;
  std::unordered_map<ChildKey, std::unique_ptr<PrefixNode>, Hash> children_;
  std::int64_t tokens_ = 0;
  std::uint64_t next_number_ = 0;
};

}  // namespace kvcache::prefix
