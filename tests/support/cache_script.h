// Scripts of cache calls, as text that can be read, shrunk and kept as regression tests.
//
// Thread safety: values, and free functions over their arguments.
//
//   forward 0:3 0:4 1:0            tokens sequence:position, put in every layer
//   forward 0:5 layers 0 2         put in layers 0 and 2 only, as if the pass broke off
//   forward 0:6 1:2 except 0 items 1   query 0 is bidirectional; an item at index 1
//   forward 0:3 0:4 0:4 parents -1 0 0    drafts: two alternatives after the first
//   accept 1                       accepts the path to batch index 1
//   reserve 0:0 1:0                a reserve pass of two tokens
//   copy 0 1 5                     positions [0, 5) of sequence 0 to sequence 1
//   remove 0 2 end                 truncates sequence 0 to two tokens
//   prepare 0 4                    PrepareRestore to four tokens
//   restore 0 4                    the same, then Remove
//   compact
//   snapshot 0 2 5 1               positions [2, 5) of sequence 0, kept in slot 1
//   bring 0 5 1                    restores slot 1 to sequence 0, to five tokens; slot -1: none
//   merge 1 2                      slots 1 and 2 into slot 1
//   split 1 4 2                    slot 1 at position 4; the second part goes to slot 2
//   drop 1                         destroys the snapshot in slot 1
//   materialize 1
//   export 1                       exports slot 1 and imports it again
//   capture 0 2 4 8                schedules captures of sequence 0 from 2 on, at lengths 4 and 8
//                                  (from -1: each from position 0)
//   take 0 1                       takes them, to slots from 1 on
//   begin 0 0:4 1:7 max 3          transaction 0 of sequences 0 and 1, which have 4 and 7 tokens
//   begin 1 2:0 max 2 isolated
//   commit 0 2 0                   keeps two tokens of the first sequence and none of the second
//   rollback 0
//   evict 0                        EvictWindow of sequence 0
//   … fail store 2                 suffix of any step: the second store of the call fails
#pragma once

#include <string>
#include <vector>

#include "kvcache/types.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::testing {

struct ScriptStep {
  enum class Kind {
    kForward,
    kReserve,
    kCopy,
    kRemove,
    kPrepare,
    kRestore,
    kCompact,
    kAccept,
    kSnapshot,
    kBring,
    kMerge,
    kSplit,
    kDrop,
    kMaterialize,
    kCapture,
    kTake,
    kExport,
    kBegin,
    kCommit,
    kRollBack,
    kEvict,
  };
  static constexpr int kTransactions = 2;
  static constexpr int kSlots = 6;

  Kind kind = Kind::kForward;
  std::vector<TestToken> tokens{};  // forward, reserve
  std::vector<int> layers{};        // forward: the layers put; empty: all
  std::vector<int> except{};        // forward: argument of SetCausal
  std::vector<int> items{};         // forward, reserve: indices of items
  std::vector<int> parents{};       // forward, reserve: parents of drafts
  // accept: last draft of each path; capture: the lengths; commit: numbers of tokens
  std::vector<int> accepted{};
  int sequence = 0;  // remove, prepare, restore, evict; copy: from
  int target = 0;    // copy: to; merge, split: the second slot
  // remove; copy: the length; prepare, restore: the target; begin: max_tokens
  Position begin = 0;
  Position end = 0;       // remove
  int slot = 0;           // of a snapshot or a transaction
  bool isolated = false;  // begin
  ReferenceBackend::Call fail_call = ReferenceBackend::Call::kAny;
  int fail_nth = 0;  // 0: nothing fails
};

using Script = std::vector<ScriptStep>;

std::string ToText(const Script& script);

// Parses the text of a script. REQUIRES: text as ToText writes it.
Script ParseScript(const std::string& text);

}  // namespace kvcache::testing
