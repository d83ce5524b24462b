// Decides which node of the trie goes first.
//
//   Begin ─► … ─► End ─► Touch, for each node that the request used
//   Track ─► Offer, as often as it changes whether the node may go
//   Next: the offered node that goes first
//
// What a policy knows of a node is in a hook, which the node owns and nobody else looks into.
//
// Thread safety: that of the PrefixCache that owns it.
// Source: the memory policies of CacheLib (cachelib/allocator/MM*.h) have such an interface.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/prefix_cache.h"

namespace kvcache::prefix {

struct PrefixNode;

class EvictionPolicy {
 public:
  struct Hook {
    virtual ~Hook() = default;
  };
  // A request that ends.
  struct Use {
    std::span<const PrefixKey> keys;  // of the prompt and the answer
    std::uint64_t salt = 0;
    Position prompt = 0;  // keys of the prompt
    Position known = 0;   // what Begin returned
  };
  virtual ~EvictionPolicy() = default;

  // Counts the beginning of a request. Returns how many of its first keys any request had before, also if they were
  // evicted; at least the whole chunks of them that the policy remembers. Throws std::bad_alloc.
  virtual Position Begin(std::span<const PrefixKey> prompt, std::uint64_t salt) = 0;
  // Returns what Begin would, and changes nothing.
  virtual Position Known(std::span<const PrefixKey> prompt, std::uint64_t salt) const = 0;
  // Counts the end of a request. Throws std::bad_alloc; then no Touch may follow.
  virtual void End(const Use& use) = 0;

  // Follows a node, which has its keys. It counts as used now. Throws std::bad_alloc.
  virtual std::unique_ptr<Hook> Track(PrefixNode& node) = 0;
  // Says that `node` is the upper part of what was `lower`: it has the same use. Allocates nothing.
  virtual void Divide(PrefixNode& node, const PrefixNode& lower) = 0;
  // Says that `child` has the keys of `node` as well, which is removed. Allocates nothing.
  virtual void Merge(const PrefixNode& node, PrefixNode& child) = 0;
  // The request that ended last used the node. Allocates nothing.
  virtual void Touch(PrefixNode& node) = 0;
  // Says whether the node may go. Call it after each change of its children, its state and its use; with false before
  // the node is removed. Allocates nothing.
  virtual void Offer(PrefixNode& node, bool may_go) = 0;
  // Returns whether the node is offered.
  virtual bool IsOffered(const PrefixNode& node) const = 0;

  // Returns the offered node that goes first, or null if there is none. `tokens`: of the trie, which are too many.
  virtual PrefixNode* Next(std::int64_t tokens) = 0;

  // Returns the bytes that it takes, with the hooks of so many nodes.
  virtual std::int64_t BytesFor(std::int64_t nodes) const = 0;
};

}  // namespace kvcache::prefix
