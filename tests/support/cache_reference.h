// The interface of the conformance kit: a cache kind and its reference model, side by side.
//
// A reference model makes the real cache, answers every call by definition, runs a model's calls of
// a pass on both, and compares everything that can be observed. CacheDriver (cache_driver.h) runs
// scripts over any reference model; script_random.h makes random scripts and shrinks those that
// fail.
//
// The kit uses the public headers only. To check your own kind, write its reference model:
// causal_reference.h is a complete one, examples/custom_kind a complete program. To check your own
// backend, let DriverSetup::make_backend wrap it in a KernelBackend.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/transaction.h"
#include "support/cache_harness.h"
#include "support/cache_script.h"
#include "support/reference_backend.h"

namespace kvcache::testing {

// The first difference found, or nothing.
using Difference = std::optional<std::string>;

// The settings of all reference models of one driver.
struct ReferenceSetup {
  CacheOptions options;
  CacheConfig config;
};

// Returns where capture i begins: at the length before it, or all at 0 (CacheSnapshots::ScheduleCaptures).
inline Position BeginOf(Position begin, const std::vector<Position>& lengths, std::size_t i) {
  if (begin == kEachFromZero) return 0;
  return i == 0 ? begin : lengths[i - 1];
}

// What a reference model keeps of a snapshot. Each model has its own kind.
struct ReferenceSnapshot {
  Position begin = 0;
  Position end = 0;
  ReferenceSnapshot(Position b, Position e) : begin(b), end(e) {}
  virtual ~ReferenceSnapshot() = default;
};
using ReferenceSnapshotPtr = std::shared_ptr<ReferenceSnapshot>;

class CacheReference {
 public:
  virtual ~CacheReference() = default;

  // Returns the real cache, not yet configured. The caller owns it; the reference model keeps a
  // pointer. Called once.
  virtual std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) = 0;

  // --- The code that each call must return, by definition. These change nothing.
  virtual StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const = 0;
  virtual StatusCode CheckAccept(const std::vector<int>& last) const = 0;
  virtual StatusCode CheckCopy(int src, int dst, Position length) const = 0;
  virtual StatusCode CheckRemove(int sequence, Position begin, Position end) const = 0;
  virtual bool CanResume(int sequence, Position position) const = 0;
  // Returns whether, after PrepareRestore, Remove(sequence, length, kEndOfSequence) leaves a
  // sequence that can continue at `length`. REQUIRES: length > 0.
  virtual bool CanGoBackTo(int sequence, Position length) const = 0;

  // --- The calls, on the reference model only. REQUIRES: the check returned kOk.
  virtual void Begin(const TestBatch& batch, ForwardMode mode) = 0;
  virtual void SetNonCausal(const std::vector<int>& queries) = 0;
  virtual void Accept(const std::vector<int>& last) = 0;
  virtual void Copy(int src, int dst, Position length) = 0;
  virtual void Remove(int sequence, Position begin, Position end) = 0;
  virtual void PrepareRestore(int sequence, Position length) = 0;  // with the real cache's result
  virtual void EndPass() = 0;

  // --- EvictWindow. A kind without a window leaves these out: the call only ends the pass.
  virtual StatusCode CheckEvict(int sequence) const {
    return CheckRemove(sequence, 0, kEndOfSequence);
  }
  virtual void Evict(int /*sequence*/) { EndPass(); }

  // --- Snapshots: the same, a check and a call for each. A kind without snapshots leaves these out.
  virtual StatusCode CheckSnapshot(int /*sequence*/, Position /*begin*/, Position /*end*/) const {
    return StatusCode::kUnsupported;
  }
  // Returns null where the real cache must.
  virtual ReferenceSnapshotPtr TakeSnapshot(int /*sequence*/, Position /*begin*/,
                                            Position /*end*/) {
    return nullptr;
  }
  // `snapshot` may be null.
  virtual StatusCode CheckRestore(int /*sequence*/, const ReferenceSnapshot* /*snapshot*/,
                                  Position /*target*/) const {
    return StatusCode::kUnsupported;
  }
  virtual void Restore(int /*sequence*/, const ReferenceSnapshot* /*snapshot*/,
                       Position /*target*/) {}
  // REQUIRES for both: valid arguments. Split returns null first where the real cache must.
  virtual ReferenceSnapshotPtr Merge(const ReferenceSnapshotPtr& /*parent*/,
                                     const ReferenceSnapshotPtr& /*child*/) {
    return nullptr;
  }
  virtual std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> Split(
      const ReferenceSnapshotPtr& /*snapshot*/, Position /*position*/) {
    return {};
  }
  virtual StatusCode CheckSchedule(int /*sequence*/, Position /*begin*/,
                                   const std::vector<Position>& /*lengths*/) const {
    return StatusCode::kUnsupported;
  }
  virtual void Schedule(int /*sequence*/, Position /*begin*/,
                        const std::vector<Position>& /*lengths*/) {}
  virtual std::vector<ReferenceSnapshotPtr> TakeCaptures(int /*sequence*/) { return {}; }
  // Is called after every step with each snapshot and the real one. The real cache may have
  // materialised it: a restore then makes new copies of its tokens.
  virtual void Follow(ReferenceSnapshot& /*snapshot*/, const Snapshot& /*real*/) {}
  // Notes whether real snapshots, the caller's and captures, may hold cells of their own now.
  virtual void set_snapshots(bool any) { snapshots_ = any; }

  // --- Transactions: the same. `kept` has the length that remains of each member. A kind without
  // transactions leaves these out.
  virtual StatusCode CheckTransaction(const std::vector<SequenceLength>& /*members*/,
                                      Position /*max_tokens*/) const {
    return StatusCode::kUnsupported;
  }
  virtual void BeginTransaction(const std::vector<SequenceLength>& /*members*/,
                                Position /*max_tokens*/) {}
  virtual StatusCode CheckCommit(const std::vector<SequenceLength>& /*kept*/) const {
    return StatusCode::kUnsupported;
  }
  virtual void Commit(const std::vector<SequenceLength>& /*kept*/) {}
  virtual void RollBack(const std::vector<SequenceLength>& /*members*/) {}

  // Runs a model's calls in a pass that has begun, on `cache` (which may be a wrapper) and on the
  // reference model, for the layers of `step`. Returns the first error.
  virtual Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) = 0;

  // Compares everything that can be observed of the cache that MakeCache made.
  virtual Difference Check() = 0;

  // Returns the length of the sequence, for making scripts.
  virtual Position length(int sequence) const = 0;
  // Returns the sequence of each draft of the pass, for making scripts; empty in other passes.
  virtual std::vector<int> drafts() const = 0;
  // Returns the situations that scripts should cover and that hold now, as Coverage bits.
  virtual unsigned coverage() const = 0;

 protected:
  bool snapshots_ = false;
};

// Bits of CacheReference::reached.
enum Coverage : unsigned {
  kCoverShared = 1,    // two sequences share a token
  kCoverFull = 2,      // no cell is free
  kCoverEvicted = 4,   // a sequence's first tokens were evicted
  kCoverRestored = 8,  // a state was restored
  kCoverTorn = 16,     // a pass broke off
  kCoverForked = 32,   // two drafts follow the same token
  kCoverBack = 64,     // a transaction took tokens back
};

// The layers that every reference model writes, and their shapes. The last one has V in K.
inline constexpr int kTestLayers = 3;
const KvShape& TestShape(int layer);
// Returns the dtype of the layer's values: that of K if V is in K.
DType ValueType(const ReferenceSetup& setup, int layer);
// Returns whether the step puts keys and values into the layer.
bool PutsLayer(const ScriptStep& step, int layer);

// Returns the code that AcceptDrafts(last) must return in a pass of these drafts.
StatusCode CheckAcceptedDrafts(const std::vector<int>& drafts, const std::vector<int>& last);

std::string At(int sequence, Position position);
std::vector<float> RoundedAll(DType type, std::vector<float> values);

}  // namespace kvcache::testing
