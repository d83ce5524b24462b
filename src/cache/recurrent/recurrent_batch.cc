#include "cache/recurrent/recurrent_batch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

using Kind = StatePlace::Kind;

Status UnsupportedOrder(const std::string& why) {
  return Unsupported("recurrent layers: " + why);
}

std::string Name(SequenceId id) {
  return StrCat("sequence ", Index(id));
}

}  // namespace

void SegmentPlan::Reserve(int count) {
  segments.reserve(count);
  strands.reserve(count + 1);
}

void SegmentPlan::Clear() {
  segments.clear();
  strands.assign(1, 0);
  scratch_states = 0;
}

void RecurrentBatch::Layout::Clear() {
  members.clear();
  sequences.clear();
  tokens = 0;
  tokens_per_sequence = 0;
  cuts.clear();
  plan.Clear();
  drafts.Clear();
}

void RecurrentBatch::Layout::Reserve(int count, int max_batch) {
  members.reserve(count);
  sequences.reserve(count);
  cuts.reserve(max_batch);
  plan.Reserve(max_batch);
  drafts.Reset(max_batch);
  Clear();
}

void RecurrentBatch::Reset(int pass_sequences, int sequences, int max_batch) {
  current_.Reserve(pass_sequences, max_batch);
  next_.Reserve(pass_sequences, max_batch);
  accepted_.Reserve(max_batch);
  member_of_.assign(sequences, kNone);
  children_.reserve(max_batch);
  segment_of_.reserve(max_batch);
  branches_.reserve(max_batch);
  stack_.reserve(max_batch);
  free_scratch_.reserve(max_batch);
}

Status RecurrentBatch::Prepare(const Batch& batch) {
  next_.Clear();
  next_.tokens = static_cast<std::int32_t>(batch.size());
  next_.drafts.Set(batch);
  Status status;
  if (batch.parents.empty()) {
    status = ReadSequences(batch);
  } else {
    ReadDrafts(batch);
  }
  bool even = true;
  for (const Member& member : next_.members) {
    member_of_[Index(member.sequence)] = kNone;
    even = even && member.tokens == next_.members.front().tokens;
  }
  if (even) next_.tokens_per_sequence = next_.members.front().tokens;
  return status;
}

std::int32_t RecurrentBatch::AddMember(SequenceId sequence, Position position) {
  const auto index = static_cast<std::int32_t>(next_.members.size());
  member_of_[Index(sequence)] = index;
  next_.members.push_back({sequence, position, position, 0});
  next_.sequences.push_back(sequence);
  return index;
}

Status RecurrentBatch::ReadSequences(const Batch& batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const SequenceId id = batch.sequences[i];
    const Position position = batch.positions[i];
    const bool continues = i > 0 && id == batch.sequences[i - 1];
    if (continues && position <= batch.positions[i - 1]) {
      return UnsupportedOrder(StrCat(Name(id), " has position ", position, " after ",
                                     batch.positions[i - 1], "; must be ascending"));
    }
    if (!continues) {
      if (member_of_[Index(id)] != kNone) {
        return UnsupportedOrder(Name(id) +
                                " has tokens in two places of the batch; must be neighbours");
      }
      AddMember(id, position);
    }
    next_.members.back().last = position;
    ++next_.members.back().tokens;
  }
  return Status::Ok();
}

void RecurrentBatch::PlanSequences() {
  const std::vector<StateCut>& cuts = current_.cuts;
  std::int32_t column = 0;
  std::int32_t cut = 0;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(members().size()); ++i) {
    StatePlace before{Kind::kBefore, i};
    std::int32_t done = 0;
    for (; cut < static_cast<std::int32_t>(cuts.size()) && cuts[cut].member == i; ++cut) {
      const StatePlace capture{Kind::kCapture, cut};
      current_.plan.segments.push_back({column + done, cuts[cut].tokens - done, before, capture});
      done = cuts[cut].tokens;
      before = capture;
    }
    const std::int32_t tokens = members()[i].tokens;
    current_.plan.segments.push_back({column + done, tokens - done, before, {Kind::kAfter, i}});
    current_.plan.EndStrand();
    column += tokens;
  }
}

void RecurrentBatch::ReadDrafts(const Batch& batch) {
  children_.assign(batch.size(), 0);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch.parents[i] != kNone) ++children_[batch.parents[i]];
    const std::int32_t known = member_of_[Index(batch.sequences[i])];
    const std::int32_t member =
        known != kNone ? known : AddMember(batch.sequences[i], batch.positions[i]);
    ++next_.members[member].tokens;
  }
  DivideDrafts(batch);
  LinkBranches();
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    if (branches_[i].parent == kNone) PlanStrand(static_cast<std::int32_t>(i));
  }
}

// A draft continues its parent's segment if it is the only child and the next token of the batch.
// So the parent of any other draft is the last one of its segment.
void RecurrentBatch::DivideDrafts(const Batch& batch) {
  branches_.clear();
  segment_of_.clear();
  for (std::int32_t i = 0; i < next_.tokens; ++i) {
    const std::int32_t parent = batch.parents[i];
    if (parent == kNone || parent != i - 1 || children_[parent] != 1) {
      branches_.push_back(
          {.segment = {.first = i, .before = {.index = member_of_[Index(batch.sequences[i])]}},
           .parent = parent == kNone ? kNone : segment_of_[parent]});
    }
    ++branches_.back().segment.tokens;
    segment_of_.push_back(static_cast<std::int32_t>(branches_.size()) - 1);
  }
}

void RecurrentBatch::LinkBranches() {
  for (auto i = static_cast<std::int32_t>(branches_.size()) - 1; i >= 0; --i) {
    Branch& branch = branches_[i];
    if (branch.parent == kNone) continue;
    branch.next_sibling = branches_[branch.parent].first_child;
    branches_[branch.parent].first_child = i;
  }
}

std::int32_t RecurrentBatch::TakeScratch() {
  if (free_scratch_.empty()) return next_.plan.scratch_states++;
  const std::int32_t scratch = free_scratch_.back();
  free_scratch_.pop_back();
  return scratch;
}

// Adds the segments of a root and its descendants, depth first. A segment with further segments
// below it keeps its scratch state until its last child takes it over. Strands run at the same
// time, so each has scratch states of its own.
void RecurrentBatch::PlanStrand(std::int32_t root) {
  free_scratch_.clear();
  stack_.push_back(root);
  while (!stack_.empty()) {
    Branch& branch = branches_[stack_.back()];
    stack_.pop_back();
    PlannedSegment& segment = branch.segment;
    if (branch.parent != kNone) segment.before = branches_[branch.parent].segment.after;
    const bool takes_over = branch.parent != kNone && branch.next_sibling == kNone;
    segment.after =
        takes_over ? segment.before : StatePlace{.kind = Kind::kScratch, .index = TakeScratch()};
    next_.plan.segments.push_back(segment);
    if (branch.first_child == kNone) free_scratch_.push_back(segment.after.index);
    // The first child must be the next that is visited, so the list goes onto the stack reversed.
    const auto below = static_cast<std::ptrdiff_t>(stack_.size());
    for (std::int32_t child = branch.first_child; child != kNone;
         child = branches_[child].next_sibling) {
      stack_.push_back(child);
    }
    std::reverse(stack_.begin() + below, stack_.end());
  }
  next_.plan.EndStrand();
}

void RecurrentBatch::Begin() {
  std::swap(current_, next_);
  next_.Clear();
}

// A path is divided where its tokens are not neighbours in the batch, and at its captures. Segments
// up to a capture write its state, and later ones continue from there.
const SegmentPlan& RecurrentBatch::PlanAccepted(std::span<const std::int32_t> last,
                                                std::span<const StateCut> cuts) {
  accepted_.Clear();
  std::size_t cut = 0;
  for (std::size_t i = 0; i < last.size(); ++i) {
    const SequenceId id = drafts().sequence(last[i]);
    const auto member = std::find(sequences().begin(), sequences().end(), id) - sequences().begin();
    StatePlace before{Kind::kBefore, static_cast<std::int32_t>(member)};
    const std::span<const std::int32_t> path = drafts().PathTo(last[i]);
    bool starts = true;
    for (std::size_t done = 0; done < path.size(); ++done) {
      const bool captured = cut < cuts.size() && cuts[cut].member == static_cast<std::int32_t>(i);
      const StatePlace after = captured ? StatePlace{Kind::kCapture, static_cast<std::int32_t>(cut)}
                                        : StatePlace{Kind::kAfter, static_cast<std::int32_t>(i)};
      if (starts || path[done] != path[done - 1] + 1) {
        accepted_.segments.push_back({path[done], 0, before, after});
      }
      ++accepted_.segments.back().tokens;
      before = after;
      starts = captured && cuts[cut].tokens == static_cast<std::int32_t>(done) + 1;
      if (starts) ++cut;
    }
    accepted_.EndStrand();
  }
  return accepted_;
}

}  // namespace kvcache
