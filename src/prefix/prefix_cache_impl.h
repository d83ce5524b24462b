// The implementation of PrefixCache, divided into prefix_cache.cc (requests) and prefix_eviction.cc.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "prefix/continuations.h"
#include "prefix/eviction_policy.h"
#include "prefix/prefix_trie.h"

namespace kvcache::prefix {

class PrefixCacheImpl final : public PrefixCache {
 public:
  PrefixCacheImpl(PrefixStates& states, PrefixOptions options);
  ~PrefixCacheImpl() override;
  PrefixCacheImpl(const PrefixCacheImpl&) = delete;
  PrefixCacheImpl& operator=(const PrefixCacheImpl&) = delete;

  Result<PrefixPlan> Begin(const PrefixPrompt& prompt, double now) override;
  Result<PrefixMatch> Probe(const PrefixPrompt& prompt) const override;
  std::vector<Position> NotRestored(PrefixRequest request) override;
  Status Append(PrefixRequest request, std::span<const PrefixKey> keys) override;
  Status Extend(PrefixRequest request, Position length, PrefixState state) override;
  void Close(PrefixRequest request, double now) override;
  Status FollowedBy(std::span<const PrefixKey> text, std::size_t min, std::uint64_t salt,
                    std::size_t max, std::vector<PrefixKey>& keys) const override;
  std::int64_t Evict(std::int64_t tokens) override;
  Position Pin(const PrefixPrompt& prompt, double until) override;
  void Visit(std::uint64_t salt,
             const std::function<bool(const PrefixNodeView&)>& visit) const override;
  PrefixStats Stats() const override;
  std::string CheckStructure() const override;

 private:
  struct Request {
    std::uint64_t salt = 0;
    std::vector<PrefixKey> keys;
    std::vector<Position> restore_points;
    std::vector<PrefixRange> pictures;
    Position prompt = 0;
    Position known = 0;          // keys of the prompt that were seen before
    Position extended = 0;       // the greatest length given to Extend, or resumed
    PrefixNode* node = nullptr;  // protected: the deepest node that the request continues from
  };
  // Where a prompt continues.
  struct Found {
    PrefixMatch match;
    PrefixNode* node = nullptr;  // whose edge has the key before `resumed`; the root if that is 0
    Position length = 0;         // keys that the trie has, also the last one of the prompt
  };

  Status CheckPrompt(const PrefixPrompt& prompt) const;
  Found Find(const PrefixPrompt& prompt, PrefixNode* root) const;
  // Ends the match before a picture that it ends in.
  void LeavePicture(const PrefixPrompt& prompt, const PrefixNode* root, Found& found) const;
  // Returns the match of a prompt, with what it misses. `known`: what the history has.
  static PrefixMatch WithMisses(Found found, const PrefixPrompt& prompt, Position known);
  // Returns the first node with a state, this one or below it, or null.
  PrefixNode* StateBelow(PrefixNode* top) const;
  std::vector<Position> Captures(const Request& request, Position from, Position matched) const;

  // Lists the node if it may go, and takes it out of the list otherwise.
  void Relist(PrefixNode& node);
  bool MayGo(const PrefixNode& node) const;
  void Protect(Request& request, PrefixNode& node);
  PrefixNode& SplitAt(PrefixNode& node, Position length);
  PrefixNode& AddLeaf(PrefixNode& parent, const Request& request, Position length);
  void SetState(PrefixNode& node, PrefixState state);
  void DropState(PrefixNode& node);
  void Touch(const Request& request);

  std::int64_t EvictLeaf(PrefixNode& leaf, std::int64_t tokens);
  void EvictInner(PrefixNode& node);
  // Removes leaves without a state, from this node upwards. Returns the node above them.
  PrefixNode* RemoveStateless(PrefixNode* node);
  // Merges the node and its only child, as well as memory allows.
  void MergeIfAlone(PrefixNode* node);
  void MergeUpwards(PrefixNode* node);
  void ExpirePins();

  PrefixStates& states_;
  const PrefixOptions options_;
  const std::unique_ptr<EvictionPolicy> policy_;
  PrefixTrie trie_;
  Continuations continuations_;
  std::unordered_map<std::uint64_t, Request> requests_;
  std::multimap<double, PrefixNode*> pins_;
  std::uint64_t next_request_ = 1;
  std::uint64_t uses_ = 0;  // requests that have ended
  double now_ = 0.0;
  std::int64_t state_count_ = 0;
  std::int64_t evicted_ = 0;
};

}  // namespace kvcache::prefix
