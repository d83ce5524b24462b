// Evicts the node that is the least likely to return soon, as far as that is known.
//
// Nodes are listed by class (use_class.h), and within a class by the time of their last use. The nodes of a class whose
// age is in the same bucket are worth the same, so only the oldest node of each class and bucket is looked at: the
// cost depends on the number of classes, not of nodes. While few prefixes return that the least recently used order
// would have evicted, that is the order (reuse_history.h).
//
// Thread safety: that of the PrefixCache that owns it.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <vector>

#include "prefix/eviction_policy.h"
#include "prefix/reuse_history.h"
#include "prefix/use_class.h"

namespace kvcache::prefix {

class ReturnPolicy final : public EvictionPolicy {
 public:
  // Reads `divisible`, `recompute_bound`, `state_tokens` and `history_tokens`.
  explicit ReturnPolicy(const PrefixOptions& options);

  Position Begin(std::span<const PrefixKey> prompt, std::uint64_t salt) override;
  Position Known(std::span<const PrefixKey> prompt, std::uint64_t salt) const override;
  void End(const Use& use) override;
  std::unique_ptr<Hook> Track(PrefixNode& node) override;
  void Divide(PrefixNode& node, const PrefixNode& lower) override;
  void Merge(const PrefixNode& node, PrefixNode& child) override;
  void Touch(PrefixNode& node) override;
  void Offer(PrefixNode& node, bool may_go) override;
  bool IsOffered(const PrefixNode& node) const override;
  PrefixNode* Next(std::int64_t tokens) override;
  std::int64_t BytesFor(std::int64_t nodes) const override;

 private:
  struct Entry;
  struct UsedBefore {
    using is_transparent = void;
    bool operator()(const Entry* a, const Entry* b) const;
    bool operator()(double time, const Entry* entry) const;
    bool operator()(const Entry* entry, double time) const;
  };
  using List = std::set<Entry*, UsedBefore>;
  struct Entry final : Hook {
    PrefixNode* node = nullptr;
    int of_class = 0;
    double used = 0.0;  // the history's clock at the last use
    List::node_type
        unlisted{};  // holds the place while it is in no list, so that listing allocates nothing
    List::iterator place{};  // in the list
    std::size_t list = 0;

    bool listed() const { return unlisted.empty(); }
  };
  // What is freed: the end of a text, the state of an inner node, the same at a restore point of the caller.
  enum Part : std::uint8_t { kLeaf, kInner, kRestorePoint, kParts };

  static Entry& EntryOf(const PrefixNode& node);
  static std::size_t ListOf(const PrefixNode& node, const Entry& entry);
  // Looks for the entry that is worth least in the lists of one part.
  struct Min {
    Entry* entry = nullptr;
    double worth = 0.0;
  };
  void FindLeast(Part part, Min& min) const;

  ReuseHistory history_;
  // A token of worth is multiplied with this: the share of what is freed that is tokens, for a leaf, and what a state
  // inside an edge saves of them.
  std::array<double, kParts> shares_;
  std::array<List, std::size_t{kParts} * kUseClasses> lists_;  // by part and class
  std::vector<ReuseHistory::GroupAt> groups_;                  // of the request that ended last
};

}  // namespace kvcache::prefix
