// What was used, when and how often, also of prefixes that were let go of. Feeds ReturnRates.
//
// A request divides its keys into groups: tokens that as many requests have used. A group has one
// class and one time of use. Chunks of keys, known by their chained hash, point to the group of their
// last use. When a later request names a chunk, its group has returned, by the chunk's share.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "prefix/return_rates.h"
#include "prefix/use_class.h"

namespace kvcache {

// A number for each group, ascending with time.
enum class UseGroup : std::int64_t { kNone = -1 };

class ReuseHistory {
 public:
  static constexpr Position kChunk = 64;

  // Remembers at most `max_tokens` tokens.
  explicit ReuseHistory(std::int64_t max_tokens);

  // Returns how many keys were seen before, in whole chunks from the beginning, and counts the return of
  // their groups.
  Position Return(std::span<const PrefixKey> keys, std::uint64_t salt);
  // Returns how many keys were seen before and changes nothing.
  Position Find(std::span<const PrefixKey> keys, std::uint64_t salt) const;

  // Adds the use of all keys by a request. `use.uses` is not read. Returns the group of the chunks at each
  // length, as (begin, group), ascending.
  struct GroupAt {
    Position begin = 0;
    UseGroup group = UseGroup::kNone;
  };
  std::vector<GroupAt> Use(std::span<const PrefixKey> keys, std::uint64_t salt, PrefixUse use);

  // Lets the time of all ages pass: tokens of prompts that were begun.
  void Pass(Position tokens) { clock_ += tokens; }
  double clock() const { return clock_; }

  // Says that a newer branch took the place of this group's end.
  void Supersede(UseGroup group);

  // Returns the class and the time of use of a group; zeros for one that was forgotten.
  struct LastUse {
    int of_class = 0;
    double time = 0.0;
  };
  LastUse Of(UseGroup group) const;
  const ReturnRates& rates() const { return rates_; }

  std::int64_t bytes() const;

 private:
  struct Group {
    int of_class = 0;
    double time = 0.0;
    double counted = 0.0;  // the clock up to which its waiting was counted
    double left = 0.0;     // tokens that have not returned
    double size = 0.0;     // tokens at first
  };
  struct Chunk {
    UseGroup group = UseGroup::kNone;
    double time = 0.0;  // of the last use
    std::int32_t uses = 0;
  };
  Group* Find(UseGroup group);
  void CountWait(Group& group);
  void CountReturn(UseGroup number, double tokens);
  void Forget();

  ReturnRates rates_;
  std::unordered_map<std::uint64_t, Chunk> chunks_;
  std::deque<std::uint64_t> order_;  // hashes by first use
  std::deque<Group> groups_;
  std::int64_t first_group_ = 0;
  std::int64_t max_chunks_;
  double clock_ = 0.0;
  int uses_since_refresh_ = 0;
};

}  // namespace kvcache
