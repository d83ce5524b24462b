// The calls of the library's kinds in two halves, for composites: caches that consist of others, and
// transactions over several. A composite calls the first half of all of its caches and then the second
// half of all, so that all of them change or none.
//
//   first half    does everything that can fail, and changes nothing that a caller can observe
//   second half   cannot fail; REQUIRES: the previous call was a successful first half with the same
//                 arguments
//
// A kind implements these classes beside its Cache and capabilities. Kinds outside the library have no
// halves. A composite holds one of them at most. It calls that one between
// the halves of the others.
//
// Thread safety: that of the caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/cache.h"

namespace kvcache {

using SnapshotPtr = std::unique_ptr<Snapshot>;

class TwoPhaseCache {
 public:
  virtual ~TwoPhaseCache() = default;

  // StartForward. The pass in progress continues after the first half, but the spans inside
  // Visible().histories may move to other memory, even if it fails. The arrays of the batch must be valid
  // until BeginForward.
  virtual Status PrepareForward(const Batch& batch, ForwardMode mode) = 0;
  virtual void BeginForward() = 0;

  // AcceptDrafts. PrepareAccept ends the pass unless it returns kInvalidArgument. If FinishAccept is not
  // called, no draft is kept.
  virtual Status PrepareAccept(std::span<const std::int32_t> last) = 0;
  virtual void FinishAccept() = 0;

  // Returns whether all caches inside of this one have halves.
  virtual bool has_halves() const { return true; }
};

class TwoPhaseSnapshots : public CacheSnapshots {
 public:
  Status Restore(SequenceId sequence, const Snapshot* snapshot, Position target) override {
    KVCACHE_RETURN_IF_ERROR(BeginRestore(sequence, snapshot, target));
    FinishRestore();
    return Status::Ok();
  }
  // Restore. AbandonRestore takes the first half back, also one that failed, and returns whether the
  // sequence is as before; otherwise remove all of it. FinishRestore or AbandonRestore must be the next
  // call.
  virtual Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) = 0;
  virtual void FinishRestore() = 0;
  virtual bool AbandonRestore() = 0;

  // Does all of MergeSnapshots that can fail.
  virtual Status PrepareMerge(Snapshot& parent, Snapshot& child) = 0;

  virtual bool has_halves() const { return true; }
};

class TwoPhaseTransactions : public CacheTransactions {
 public:
  Status Begin(std::span<const SequenceLength> members, Position max_tokens) override {
    KVCACHE_RETURN_IF_ERROR(PrepareBegin(members, max_tokens));
    FinishBegin(members, max_tokens);
    return Status::Ok();
  }
  virtual Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) = 0;
  virtual void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) = 0;

  // After an error of PrepareCommit only RollBack may follow.
  Status Commit(std::span<const SequenceLength> kept) override {
    KVCACHE_RETURN_IF_ERROR(PrepareCommit(kept));
    FinishCommit(kept);
    return Status::Ok();
  }
  virtual Status PrepareCommit(std::span<const SequenceLength> kept) = 0;
  virtual void FinishCommit(std::span<const SequenceLength> kept) = 0;

  virtual bool has_halves() const { return true; }
};

// One cache of a composite, or a capability of one.
template <typename WholeType, typename HalvesType>
struct CachePart {
  using Whole = WholeType;
  using Halves = HalvesType;

  // NOLINTNEXTLINE(google-explicit-constructor): a list of calls is a list of parts
  CachePart(Whole* calls) : whole(calls), halves(dynamic_cast<Halves*>(calls)) {
    if (halves != nullptr && !halves->has_halves()) halves = nullptr;
  }

  Whole* whole;
  Halves* halves;  // null: it, or a cache inside of it, has none
};
using PassPart = CachePart<Cache, TwoPhaseCache>;
using SnapshotPart = CachePart<CacheSnapshots, TwoPhaseSnapshots>;
using TransactionPart = CachePart<CacheTransactions, TwoPhaseTransactions>;

// Returns whether all parts have halves.
template <typename Parts>
bool AllHaveHalves(const Parts& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [](const auto& part) { return part.halves != nullptr; });
}

// Calls `first` of the parts that have halves, then `whole` of those that have none, then `second`.
template <typename Part, typename Parts, typename First, typename Whole, typename Second>
Status InHalves(const Parts& parts, const First& first, const Whole& whole, const Second& second) {
  for (const Part part : parts) {
    if (part.halves != nullptr) KVCACHE_RETURN_IF_ERROR(first(*part.halves));
  }
  for (const Part part : parts) {
    if (part.halves == nullptr) KVCACHE_RETURN_IF_ERROR(whole(*part.whole));
  }
  for (const Part part : parts) {
    if (part.halves != nullptr) second(*part.halves);
  }
  return Status::Ok();
}

// A cache whose StartForward and AcceptDrafts consist of their halves.
template <typename Interface>
class HalvedCache : public Interface, public TwoPhaseCache {
 public:
  using Interface::Interface;

  Status StartForward(const Batch& batch, ForwardMode mode) override {
    KVCACHE_RETURN_IF_ERROR(PrepareForward(batch, mode));
    BeginForward();
    return Status::Ok();
  }
  Status AcceptDrafts(std::span<const std::int32_t> last) override {
    KVCACHE_RETURN_IF_ERROR(PrepareAccept(last));
    FinishAccept();
    return Status::Ok();
  }
};

}  // namespace kvcache
