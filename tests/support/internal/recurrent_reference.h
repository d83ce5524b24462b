// The reference model of the recurrent cache: attention as in causal_reference.h, and states. It
// inspects the real cache's state table.
//
// A number names every state and determines its values: the content of the last token that the state
// took in. A restore point is such a number and a count of tokens.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/recurrent_cache_impl.h"
#include "support/cache_reference.h"
#include "support/internal/inspected_causal.h"

namespace kvcache::testing {

struct RecurrentReferenceOptions {
  CausalReferenceOptions attention;
  int conv_dim = 2;
  int conv_channels = 3;
  int state_size = 12;
  int max_states = 0;
  CheckpointOptions checkpoints{.count = 3, .spacing = 2, .minimum = 1};
  bool can_replay = true;  // has a function replay_drafts
};
std::string ToText(const RecurrentReferenceOptions& options);

class RecurrentReference : public CacheReference {
 public:
  RecurrentReference(const ReferenceSetup& setup, const RecurrentReferenceOptions& recurrent);

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override;
  StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const override;
  StatusCode CheckAccept(const std::vector<int>& last) const override {
    return attention_.CheckAccept(last);
  }
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
  Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) override;
  Difference Check() override;
  Position length(int sequence) const override { return attention_.length(sequence); }
  std::vector<int> drafts() const override { return attention_.drafts(); }
  unsigned coverage() const override;

 private:
  struct Point {
    std::uint32_t state = 0;  // 0: zeros
    Position tokens = 0;
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
  Status KeepInputs(RecurrentCache& cache, int layer);
  Status Replay(const DraftReplay& replay);
  Status ReplaySegments(const DraftReplay& replay, const StateSegments& segments, int kind);
  void Advance(Sequence& sequence, const Point& to);
  void CompareStates(const TensorView& view, int layer, int kind);
  Status Advance(RecurrentCache& cache, int layer, int kind);
  void Commit();
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
  std::vector<Member> members_;
  TestBatch batch_;        // of the pass in progress
  bool complete_ = false;  // a pass of drafts has written all states
  bool in_pass_ = false;
  bool reserving_ = false;
  bool restored_ = false;
  bool torn_ = false;
  Difference seen_;  // a difference found inside a pass
};

}  // namespace kvcache::testing
