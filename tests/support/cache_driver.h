// Runs scripts on a cache and on its reference model, and compares them after every step: the code
// returned, everything that the reference model compares, CanResume at all positions, and
// AllocatedBytes with the bytes that the backend lent. After the last step it checks for leaks.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/cache_reference.h"
#include "support/cache_script.h"
#include "support/reference_backend.h"

namespace kvcache::testing {

// A cache to drive: its sizes, and the function that makes its reference model.
struct DriverSetup {
  CacheOptions options;
  CacheConfig config;
  std::string kind;             // for messages
  bool rarely_removes = false;  // scripts rarely remove tokens, so that the cache fills up
  bool snapshots = true;        // scripts have steps with snapshots
  bool transactions = true;     // and with transactions
  std::function<std::unique_ptr<CacheReference>(const ReferenceSetup&)> make_reference;
  // Makes the backend; empty: a ReferenceBackend. KernelBackend (kernel_backend.h) checks another one.
  std::function<std::unique_ptr<ReferenceBackend>()> make_backend{};
};
std::string ToText(const DriverSetup& setup);

class CacheDriver {
 public:
  explicit CacheDriver(const DriverSetup& setup);

  // Runs one step on both. Returns the first difference, or nothing.
  Difference Step(const ScriptStep& step);
  // Closes the cache, also within a pass. Returns a leak, or nothing.
  Difference Finish();

  const CacheReference& reference() const { return *reference_; }
  // Returns the range of the snapshot in a slot, or nothing.
  std::optional<PositionRange> snapshot(int slot) const;
  const DriverSetup& setup() const { return setup_; }
  // Returns the members of an open transaction; empty: there is none.
  const std::vector<SequenceLength>& members(int slot) const { return members_[slot]; }
  Position max_tokens(int slot) const { return max_tokens_[slot]; }  // of that transaction
  // Returns whether the failure that the last step asked for happened.
  bool last_step_failed() const { return fired_; }
  // Returns the code that the cache returned in the last step.
  StatusCode last_status() const { return last_status_; }

 private:
  Difference Run(const ScriptStep& step, Status& status, StatusCode& expected);
  Difference RunForward(const ScriptStep& step, Status& status, StatusCode& expected);
  // Returns whether SetCausal returned the expected code.
  bool SetCausal(const ScriptStep& step, const TestBatch& batch, ForwardMode mode);
  Difference RunRestore(const ScriptStep& step, Status& status, StatusCode& expected);
  void RunAccept(const ScriptStep& step, Status& status, StatusCode& expected);
  void RunCopy(const ScriptStep& step, Status& status, StatusCode& expected);
  void RunRemove(int sequence, Position begin, Position end, Status& status, StatusCode& expected);
  Difference RunSnapshot(const ScriptStep& step, Status& status, StatusCode& expected);
  Difference RunBring(const ScriptStep& step, Status& status, StatusCode& expected);
  Difference RunMerge(const ScriptStep& step, Status& status, StatusCode& expected);
  Difference RunSplit(const ScriptStep& step, Status& status, StatusCode& expected);
  Difference RunTake(const ScriptStep& step, Status& status, StatusCode& expected);
  Difference RunExport(const ScriptStep& step, Status& status);
  void RunBegin(const ScriptStep& step, Status& status, StatusCode& expected);
  void RunCommit(const ScriptStep& step, Status& status, StatusCode& expected);
  void RollBack(int slot);
  Difference FollowSnapshots();
  Difference RemoveBroken(int sequence);
  Difference CheckCall(const Status& status, StatusCode expected) const;
  Difference CheckAll();
  Difference CheckResume() const;

  // A snapshot of the cache, and the reference model's; both null: none.
  struct Slot {
    std::unique_ptr<Snapshot> real;
    ReferenceSnapshotPtr reference;
  };

  DriverSetup setup_;
  std::unique_ptr<ReferenceBackend> backend_;
  std::unique_ptr<CacheReference> reference_;
  std::unique_ptr<Cache> cache_;
  std::array<Slot, ScriptStep::kSlots> slots_;  // destroyed before the cache, or after Finish
  std::array<std::optional<Transaction>, ScriptStep::kTransactions> transactions_;
  std::array<std::vector<SequenceLength>, ScriptStep::kTransactions> members_;
  std::array<Position, ScriptStep::kTransactions> max_tokens_{};
  std::array<bool, ScriptStep::kTransactions> isolated_{};
  std::int64_t hooked_bytes_ = 0;  // as the materialise hook counts them
  std::vector<bool> scheduled_;    // [sequences]: has captures
  std::uint32_t next_content_ = 1;
  bool fired_ = false;
  StatusCode last_status_ = StatusCode::kOk;
};

struct ScriptFailure {
  std::size_t step = 0;
  std::string what;
};
std::optional<ScriptFailure> RunScript(const DriverSetup& setup, const Script& script);

}  // namespace kvcache::testing
