// The reference model of the recurrent cache: attention as in causal_reference.h, and states. It
// inspects the real cache's state table.
//
// A number names every state and determines its values: the content of the last token that the state
// took in. A restore point is such a number and a count of tokens. A state that comes back from host
// memory is a new one with the same values.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/recurrent/recurrent_cache_impl.h"
#include "support/cache_reference.h"
#include "support/internal/inspected_causal.h"

namespace kvcache::testing {

struct RecurrentReferenceOptions {
  CausalReferenceOptions attention;
  int conv_dim = 2;
  int conv_channels = 3;
  int state_size = 12;
  int max_states = 0;
  int snapshot_states = 2;
  CheckpointOptions checkpoints{.count = 3, .spacing = 2, .minimum = 1};
  bool can_replay = true;  // has a function replay_drafts
};
std::string ToText(const RecurrentReferenceOptions& options);

class RecurrentReference : public CacheReference {
 public:
  RecurrentReference(const ReferenceSetup& setup, const RecurrentReferenceOptions& recurrent);

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override;
  StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const override;
  StatusCode CheckAccept(const std::vector<int>& last) const override;
  StatusCode CheckCopy(int src, int dst, Position length) const override;
  StatusCode CheckRemove(int sequence, Position begin, Position end) const override;
  bool CanResume(int sequence, Position position) const override;
  bool CanGoBackTo(int sequence, Position length) const override;
  void Begin(const TestBatch& batch, ForwardMode mode) override;
  void SetNonCausal(const std::vector<int>& queries) override { attention_.SetNonCausal(queries); }
  void Accept(const std::vector<int>& last) override;
  void Copy(int src, int dst, Position length) override;
  void Remove(int sequence, Position begin, Position end) override;
  void PrepareRestore(int sequence, Position length) override;
  void EndPass() override;
  void Evict(int sequence) override;
  StatusCode CheckSnapshot(int sequence, Position begin, Position end) const override;
  ReferenceSnapshotPtr TakeSnapshot(int sequence, Position begin, Position end) override;
  StatusCode CheckRestore(int sequence, const ReferenceSnapshot* snapshot,
                          Position target) const override;
  void Restore(int sequence, const ReferenceSnapshot* snapshot, Position target) override;
  ReferenceSnapshotPtr Merge(const ReferenceSnapshotPtr& parent,
                             const ReferenceSnapshotPtr& child) override;
  std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> Split(const ReferenceSnapshotPtr& snapshot,
                                                              Position position) override;
  StatusCode CheckSchedule(int sequence, Position begin,
                           const std::vector<Position>& lengths) const override;
  void Schedule(int sequence, Position begin, const std::vector<Position>& lengths) override;
  std::vector<ReferenceSnapshotPtr> TakeCaptures(int sequence) override;
  void Follow(ReferenceSnapshot& snapshot, const Snapshot& real) override;
  StatusCode CheckTransaction(const std::vector<SequenceLength>& members,
                              Position max_tokens) const override;
  void BeginTransaction(const std::vector<SequenceLength>& members, Position max_tokens) override;
  StatusCode CheckCommit(const std::vector<SequenceLength>& kept) const override;
  void Commit(const std::vector<SequenceLength>& kept) override;
  void RollBack(const std::vector<SequenceLength>& members) override { Commit(members); }
  void set_snapshots(bool any) override;

  Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) override;
  Difference Check() override;
  Position length(int sequence) const override { return attention_.length(sequence); }
  std::vector<int> drafts() const override { return attention_.drafts(); }
  unsigned coverage() const override;

 private:
  struct Point {
    std::uint32_t state = 0;  // 0: zeros
    Position tokens = 0;
    std::uint32_t copy = 0;  // > 0: from host memory
  };
  struct Kept;  // a snapshot
  // The captures of a sequence: by definition, the state after each length.
  struct Captures {
    std::vector<Position> lengths;
    std::vector<std::optional<Point>> taken;
    Position begin = 0;
    std::size_t next = 0;
  };
  // A length that the pass in progress reaches.
  struct Reached {
    int sequence = 0;
    std::size_t index = 0;
    std::uint32_t state = 0;
  };
  struct Sequence {
    std::optional<Point> live = Point{};
    std::optional<Point> before;
    std::vector<Point> checkpoints;
    std::optional<Position> prepared;
  };
  // A sequence of the pass in progress.
  struct Member {
    int sequence = 0;
    Point from;
    Point to;
  };
  // A transaction of a sequence.
  struct Round {
    struct Pass {
      std::vector<TestToken> tokens;
      Point end;
      int inputs = 0;  // number of the pass whose inputs were kept; -1: drafts, not kept
    };
    Sequence saved;
    std::vector<Pass> passes;
    std::vector<TestToken> torn;  // of a pass that did not end
  };
  enum Kind { kConv = 0, kState = 1 };
  static constexpr std::array<int, 2> kRecurrentLayers = {1, 4};
  static constexpr std::int64_t kDraftInputs = 2;  // the draft's content, and the layer

  StatusCode PrepareStates(const TestBatch& batch, ForwardMode mode) const;
  std::vector<Member> MembersOf(const TestBatch& batch) const;
  std::int64_t values(int kind) const;
  Status RunState(RecurrentCache& cache, int layer, int kind);
  Status RunLayer(RecurrentCache& cache, int layer, int kind);
  Status RunReserve(RecurrentCache& cache, int layer, int kind);
  bool even() const;
  // Returns the state that the token at the index continues.
  std::uint32_t StateBefore(std::int32_t index) const;
  Status RunSegments(RecurrentCache& cache, int layer, int kind);
  void RunSegment(const StateSegment& segment, int layer, int kind);
  void CheckColumns(const StateSegments& segments);
  void CheckViewsRefused(RecurrentCache& cache, int layer, int kind);
  void CheckRoom();
  Status KeepInputs(RecurrentCache& cache, int layer);
  bool NeedsInputs() const;
  void BeginRounds();
  Status Replay(const DraftReplay& replay);
  Status ReplaySegments(const DraftReplay& replay, const StateSegments& segments, int kind);
  void Advance(Sequence& sequence, const Point& to);
  void CompareStates(const TensorView& view, int layer, int kind);
  Status Advance(RecurrentCache& cache, int layer, int kind);
  void Commit();
  const Point* PointAt(int sequence, Position tokens) const;
  // Returns how many different lengths of captures lie inside the sequence's new tokens, ascending.
  int CountInside(int sequence, const std::vector<TestToken>& tokens) const;
  // Takes the captures of states before these tokens, and notes those of states that they bring.
  void Reach(int sequence, const std::vector<TestToken>& tokens);
  void TruncateCaptures(int sequence, Position length);
  std::vector<TestToken> PathTo(int index) const;
  std::vector<TestToken> TokensOf(int sequence, const TestBatch& batch) const;
  std::vector<Point> PointsOf(int sequence) const;
  bool Truncates(int sequence, Position end) const;
  Difference CheckTable() const;
  Difference CheckPoints(int sequence) const;

  ReferenceSetup setup_;
  RecurrentReferenceOptions recurrent_;
  InspectedCausal attention_;
  ReferenceBackend* backend_ = nullptr;
  RecurrentCacheImpl* cache_ = nullptr;
  std::vector<Sequence> sequences_;
  std::vector<Captures> captures_;  // [sequences]
  std::vector<Reached> reached_;    // by the pass in progress
  bool divided_ = false;            // a capture lies inside the pass in progress
  std::uint32_t copies_ = 0;
  std::vector<Member> members_;
  TestBatch batch_;  // of the pass in progress
  std::map<int, Round> rounds_;
  int inputs_ = 0;          // number of the last pass that kept inputs
  TestBatch inputs_batch_;  // its batch
  bool replaying_ = false;  // tokens that a transaction keeps
  bool complete_ = false;   // a pass of drafts has written all states
  bool in_pass_ = false;
  bool reserving_ = false;
  bool restored_ = false;
  bool torn_ = false;
  Difference seen_;  // a difference found inside a pass
};

}  // namespace kvcache::testing
