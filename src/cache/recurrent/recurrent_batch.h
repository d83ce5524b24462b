// Divides a batch into the segments of recurrent layers (kvcache/recurrence.h), and says which state
// each of them reads and writes. States have numbers here; the cache knows their addresses.
//
// A batch without parents has a segment for each sequence:
//
//   columns   0 1 2 3 4 | 5 | 6 7 8      before 0 → after 0,  before 1 → after 1,  …
//
// A capture inside the batch divides its sequence into segments that follow each other:
//
//   columns   0 1 ─ 2 3 4 | 5            before 0 → capture 0 → after 0,  before 1 → after 1
//
// In a pass of drafts, drafts without alternatives form one segment. Every root starts a strand. The
// pass writes no sequence's state: its states go to scratch memory, which all layers share. Segments
// are in depth-first order. The last child of a state overwrites it, so a strand needs few scratch
// states:
//
//   tokens    0 ─ 1 ─ 2 ─ 3              segment 0 1: before 0 → scratch 0
//                 │   └ 4                segment 2:   scratch 0 → scratch 1
//                 └ 5 ─ 6                segment 3:   scratch 1 → scratch 2
//                                        segment 4:   scratch 1 → scratch 1
//                                        segment 5 6: scratch 0 → scratch 0
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/pass/drafts.h"
#include "kvcache/cache.h"

namespace kvcache {

// A state that a segment reads or writes.
struct StatePlace {
  enum class Kind : std::uint8_t {
    kBefore,   // of sequence `index` of the batch, before the pass
    kAfter,    // of sequence `index` of the batch, after the pass
    kScratch,  // scratch state `index`
    kCapture,  // of capture `index` of the pass
  };
  Kind kind = Kind::kBefore;
  std::int32_t index = 0;
};

struct PlannedSegment {
  std::int32_t first = 0;  // batch index of its first token
  std::int32_t tokens = 0;
  StatePlace before{};
  StatePlace after{};
};

// A capture of the state inside a path: after the first `tokens` tokens, but not all, of sequence
// `member` of the batch or, for accepted drafts, of path `member`.
struct StateCut {
  std::int32_t member = 0;
  std::int32_t tokens = 0;
};

// Segments and their strands (kvcache/recurrence.h).
struct SegmentPlan {
  std::vector<PlannedSegment> segments;
  std::vector<std::int32_t> strands;
  std::int32_t scratch_states = 0;

  void Reserve(int count);
  void Clear();
  void EndStrand() { strands.push_back(static_cast<std::int32_t>(segments.size())); }
};

class RecurrentBatch {
 public:
  // A sequence of the batch.
  struct Member {
    SequenceId sequence{};
    Position first = 0;  // of its tokens in the batch
    Position last = 0;
    std::int32_t tokens = 0;
  };

  // May throw std::bad_alloc.
  void Reset(int pass_sequences, int sequences, int max_batch);

  // Reads a batch without changing the one in progress. REQUIRES: CheckBatch accepted it.
  // Errors: kUnsupported for a batch without parents whose sequences' tokens are not neighbors in
  // ascending order.
  Status Prepare(const Batch& batch);
  // Divides the batch that was last read, which has no drafts, at these captures, ascending.
  // REQUIRES: at most one for each token.
  void Divide(std::span<const StateCut> cuts) { next_.cuts.assign(cuts.begin(), cuts.end()); }
  // Makes the batch that was last read the one in progress.
  void Begin();
  void End() { current_.Clear(); }

  // The batch that was last read.
  std::span<const Member> prepared_members() const { return next_.members; }
  std::span<const SequenceId> prepared_sequences() const { return next_.sequences; }

  // The batch in progress.
  std::span<const Member> members() const { return current_.members; }
  std::span<const SequenceId> sequences() const { return current_.sequences; }
  std::int32_t tokens() const { return current_.tokens; }
  // Returns the number of tokens of each sequence, or 0 if it is not the same for all or a capture
  // lies inside the batch.
  std::int32_t tokens_per_sequence() const { return divided() ? 0 : current_.tokens_per_sequence; }
  // Returns whether a capture lies inside the batch.
  bool divided() const { return !current_.cuts.empty(); }
  // A batch without drafts is divided at the first call: views do not need it.
  const SegmentPlan& plan() {
    if (current_.plan.segments.empty()) PlanSequences();
    return current_.plan;
  }
  Drafts& drafts() { return current_.drafts; }
  const Drafts& drafts() const { return current_.drafts; }

  // Returns an empty plan, for states that are computed again. Valid until the next PlanAccepted.
  SegmentPlan& PlanReplay() {
    accepted_.Clear();
    return accepted_;
  }
  // Plans the segments that lead to the accepted drafts `last`, for the inputs of this batch. The
  // state after last[i] is kAfter with index i. `cuts` are as in Divide. REQUIRES:
  // Drafts::CheckChosen accepted `last`.
  const SegmentPlan& PlanAccepted(std::span<const std::int32_t> last,
                                  std::span<const StateCut> cuts);

 private:
  struct Layout {
    std::vector<Member> members;
    std::vector<SequenceId> sequences;  // of the members
    std::int32_t tokens = 0;
    std::int32_t tokens_per_sequence = 0;  // 0 if it is not the same for all
    std::vector<StateCut> cuts;
    SegmentPlan plan;
    Drafts drafts;
    void Clear();
    void Reserve(int count, int max_batch);
  };
  // A segment of drafts while the batch is read. Links are indices of segments, or kNone.
  struct Branch {
    PlannedSegment segment;
    std::int32_t parent = kNone;
    std::int32_t first_child = kNone;
    std::int32_t next_sibling = kNone;
  };
  static constexpr std::int32_t kNone = -1;

  Status ReadSequences(const Batch& batch);
  void PlanSequences();
  void ReadDrafts(const Batch& batch);
  std::int32_t AddMember(SequenceId sequence, Position position);
  void DivideDrafts(const Batch& batch);
  void LinkBranches();
  void PlanStrand(std::int32_t root);
  std::int32_t TakeScratch();

  Layout current_;
  Layout next_;
  SegmentPlan accepted_;
  // Used by Prepare only.
  std::vector<std::int32_t> member_of_;   // [sequences]: index of its member, or kNone
  std::vector<std::int32_t> children_;    // [batch]: number of children
  std::vector<std::int32_t> segment_of_;  // [batch]
  std::vector<Branch> branches_;
  std::vector<std::int32_t> stack_;         // branches to visit
  std::vector<std::int32_t> free_scratch_;  // of the strand
};

}  // namespace kvcache
