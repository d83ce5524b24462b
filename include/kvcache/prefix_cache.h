// Remembers which prefixes have a state in a cache, and decides what to reuse, keep and evict.
//
//   PrefixCache prefixes(states, {.divisible = true});
//   PrefixPlan plan = *prefixes.Begin({.keys = prompt}, now);
//   if (plan.state) { restore plan.state to plan.resumed tokens }
//   … evaluate prompt[plan.resumed, end), with captures at plan.captures …
//   prefixes.Extend(plan.request, length, state);        state over [0, length), at any time
//   prefixes.Close(plan.request, now);
//
// It is a compressed trie over keys: a node has an edge of many keys, and possibly a state. It knows
// keys, lengths and opaque states, never tensors. A state covers [0, length): it restores all of a
// prefix in one call, and states that share a prefix share its cells. So states are independent of
// each other, and letting one go frees what no other one needs.
//
// Kinds: with `divisible` (full and chunked attention), a state restores at every length up to its
// own. Without (a window or recurrent states), it restores at its own length only; then captures
// inside a prefill bound what a later request computes again.
//
// Thread safety: one thread at a time.
// Errors: after an error nothing has changed, except that an Extend or a Close without memory does not
// remember the tokens of that call.
// Design: docs/design/prefix.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// What a position holds, for comparison: the token id; the hash of the content for a position that an
// image or a sound covers; for a draft model that looks one token ahead, the pair of tokens.
using PrefixKey = std::uint64_t;

// A state that the caller made; 0 is none.
enum class PrefixState : std::uint64_t { kNone = 0 };

// The caller's side of the states: a Cache with its snapshots (engine), or a table (a simulation).
class PrefixStates {
 public:
  virtual ~PrefixStates() = default;
  // Lets go of the state.
  virtual void Drop(PrefixState state) = 0;
  // Cuts a divisible state to [0, length) and lets go of what is beyond. Returns false if that fails;
  // the state then stays as it is.
  virtual bool Truncate(PrefixState state, Position length) = 0;
};

struct PrefixOptions {
  bool divisible = true;
  // Without `divisible`: captures are this many tokens apart at most, so that a later request with a
  // matching prefix computes at most as many of the matching tokens again.
  Position recompute_bound = 512;
  // What an exact state costs beside the tokens, in tokens. Without `divisible`, states inside an edge
  // are evicted in this proportion.
  Position state_tokens = 0;
  // FollowedBy finds something. It takes up to 256 bytes for each key, at most 32 MiB.
  bool finds_continuations = false;
  // Prompt tokens whose reuse is remembered after they were evicted, to learn from.
  std::int64_t history_tokens = 64 << 20;
};

// Keys [begin, end) of a prompt.
struct PrefixRange {
  Position begin = 0;
  Position end = 0;
};

struct PrefixPrompt {
  std::span<const PrefixKey> keys;
  std::uint64_t salt = 0;                      // separates tenants and adapters
  std::span<const Position> restore_points{};  // ends of messages, ascending
  // Pictures, ascending and without overlap: matches, captures and restore points never end inside one.
  std::span<const PrefixRange> pictures{};
};

// Why tokens of a prompt were not reused.
enum class MissReason : std::uint8_t {
  kNew,            // no prompt with more than the first token of this prefix was seen
  kDiffers,        // a cached prompt has other tokens from here on
  kEvicted,        // it was known, and had to make room
  kNoState,        // it is known, and there is no restore point between here and where it ends
  kRestoreFailed,  // the state could not be restored
  kLastToken,      // the last token of a prompt is always evaluated, for its logits
  kOtherPicture,   // a cached prompt has another picture, or text, where this one has a picture
  kPartOfPicture,  // the cache has a part of a picture, which is of no use alone
};
std::string_view MissReasonName(MissReason reason);

struct PrefixMiss {
  Position tokens = 0;
  MissReason reason = MissReason::kNew;
};

// The first position where the prompt and the nearest cached prompt differ.
struct PrefixDifference {
  Position position = -1;  // -1: no cached prompt continues from there
  PrefixKey cached = 0;
  PrefixKey prompt = 0;
};

// What a prompt reuses. Lengths in tokens; resumed <= matched < number of keys.
struct PrefixMatch {
  Position matched = 0;                    // keys that the trie has
  Position resumed = 0;                    // the length to which `state` can be restored
  PrefixState state = PrefixState::kNone;  // none if resumed is 0
  std::vector<PrefixMiss> missed{};        // in order of position; sums up to keys - resumed
  PrefixDifference difference{};
};

enum class PrefixRequest : std::uint64_t {};

struct PrefixPlan : PrefixMatch {
  PrefixRequest request{};
  // Lengths above `resumed` at which the caller should take states and give them to Extend.
  std::vector<Position> captures{};
};

struct PrefixStats {
  std::int64_t tokens = 0;  // keys in the trie
  std::int64_t nodes = 0;
  std::int64_t states = 0;
  std::int64_t evicted_tokens = 0;  // since the start
  std::int64_t bytes = 0;           // of the trie and its history themselves, without states
};

// A node of the trie, for those who look at it: keys that follow those of its parent.
struct PrefixNodeView {
  std::uint64_t number = 0;         // unique
  std::uint64_t parent = 0;         // its number; 0: the beginning of all prompts
  std::span<const PrefixKey> keys;  // [begin, end); valid during the call
  Position begin = 0;
  Position end = 0;
  bool has_state = false;  // a state that covers [0, end)
  std::int32_t live = 0;   // requests that continue from here
  bool pinned = false;
  std::int32_t children = 0;  // nodes whose parent it is
};

class PrefixCache {
 public:
  // `states` must outlive the cache. Errors: kInvalidArgument for options out of range.
  static Result<std::unique_ptr<PrefixCache>> Make(PrefixStates& states, PrefixOptions options);
  // Lets go of all states.
  virtual ~PrefixCache() = default;

  // Begins a request: finds what it reuses, and protects it until Close. `now` is in seconds, of any
  // clock that does not go back. Errors: kInvalidArgument for no keys, or restore points that do not
  // ascend or lie outside of the prompt, and for such pictures; kOutOfMemory.
  virtual Result<PrefixPlan> Begin(const PrefixPrompt& prompt, double now) = 0;
  // Returns what Begin would, and changes nothing.
  virtual Result<PrefixMatch> Probe(const PrefixPrompt& prompt) const = 0;
  // Says that plan.state could not be restored, so that the request begins at 0. Returns the captures
  // that it should take then.
  virtual std::vector<Position> NotRestored(PrefixRequest request) = 0;

  // Adds evaluated keys after those of the prompt: the answer's. Errors: kOutOfMemory.
  virtual Status Append(PrefixRequest request, std::span<const PrefixKey> keys) = 0;
  // Gives the state of the request's first `length` keys to the trie, which owns it from now on, also
  // after an error. It lets go of it if it has one for these keys. The request must have evaluated
  // them. Errors: kInvalidArgument for an unknown request or a length beyond its keys; kOutOfMemory.
  virtual Status Extend(PrefixRequest request, Position length, PrefixState state) = 0;
  // Ends the request, however far it came. Unknown requests are ignored.
  virtual void Close(PrefixRequest request, double now) = 0;

  // Appends to `keys` at most `max` keys that followed the last keys of `text` in any prefix of this
  // salt, in one of them the newest. The last 12 or 6 keys are looked for, and at least `min`. The time
  // does not depend on the size of the trie. Errors: kOutOfMemory.
  virtual Status FollowedBy(std::span<const PrefixKey> text, std::size_t min, std::uint64_t salt,
                            std::size_t max, std::vector<PrefixKey>& keys) const = 0;

  // Lets go of about `tokens` tokens (at least one state), of what is worth least. Returns the number
  // of tokens that left the trie, or -1 if all that is left is in use or pinned. A state can be evicted
  // of without any token, so 0 is progress.
  virtual std::int64_t Evict(std::int64_t tokens) = 0;

  // Keeps the longest known prefix of `keys` until `until` (in seconds, as `now`); again with an
  // earlier time, shortens that. Returns its length, or 0 if there is no memory for it.
  virtual Position Pin(const PrefixPrompt& prompt, double until) = 0;
  // Calls `visit` for the nodes of a salt until it returns false. A node comes right before all that are below it,
  // and siblings that were used last come first. `visit` must not call the cache.
  virtual void Visit(std::uint64_t salt,
                     const std::function<bool(const PrefixNodeView&)>& visit) const = 0;
  virtual PrefixStats Stats() const = 0;
  // Returns the first rule of the structure that is broken, or an empty text; for tests. O(size).
  virtual std::string CheckStructure() const = 0;
};

}  // namespace kvcache
