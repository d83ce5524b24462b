#include "support/cache_driver.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

namespace kvcache::testing {
namespace {

std::string CodeText(StatusCode code) {
  return std::string(StatusCodeName(code));
}

}  // namespace

std::string ToText(const DriverSetup& setup) {
  std::ostringstream out;
  out << setup.kind << "; " << setup.options.max_sequences << " sequences, capacity "
      << setup.options.capacity << ", max batch " << setup.options.max_batch << ", K "
      << InfoOf(setup.options.k_type).name << ", V " << InfoOf(setup.options.v_type).name << ", "
      << (setup.config.layout == KvLayout::kPlain ? "plain" : "tiled")
      << (setup.config.v_transposed ? ", V transposed" : "") << ", cell padding "
      << setup.config.cell_padding << ", batch padding " << setup.config.batch_padding << ", mask "
      << InfoOf(setup.config.mask_type).name;
  return out.str();
}

CacheDriver::CacheDriver(const DriverSetup& setup)
    : setup_(setup),
      backend_(setup.make_backend ? setup.make_backend() : std::make_unique<ReferenceBackend>()),
      reference_(setup.make_reference({setup.options, setup.config})) {
  cache_ = reference_->MakeCache(*backend_);
  CacheOptions options = setup.options;
  options.config = setup.config;
  const Status status = cache_->Init(*backend_, options);
  if (cache_->snapshots() != nullptr) {
    cache_->snapshots()->SetMaterializeHook([this](std::int64_t bytes) { hooked_bytes_ += bytes; });
  }
  scheduled_.resize(setup.options.max_sequences);
  if (!status.ok()) cache_->Close();  // every step then reports it
}

std::optional<PositionRange> CacheDriver::snapshot(int slot) const {
  if (slots_[slot].real == nullptr) return {};
  return PositionRange{slots_[slot].real->begin(), slots_[slot].real->end()};
}

Difference CacheDriver::Step(const ScriptStep& step) {
  backend_->FailNth(step.fail_call, step.fail_nth);
  Status status;
  StatusCode expected = StatusCode::kOk;
  Difference difference = Run(step, status, expected);
  last_status_ = status.code();
  fired_ = step.fail_nth > 0 && !backend_->failure_pending();
  backend_->FailNth(step.fail_call, 0);
  if (difference.has_value()) return difference;
  if ((difference = CheckCall(status, expected))) return difference;
  const bool removes = step.kind == ScriptStep::Kind::kRemove ||
                       step.kind == ScriptStep::Kind::kRestore ||
                       (step.kind == ScriptStep::Kind::kBring && !status.ok());
  if (fired_ && removes && (difference = RemoveBroken(step.sequence))) return difference;
  return CheckAll();
}

Difference CacheDriver::Run(const ScriptStep& step, Status& status, StatusCode& expected) {
  switch (step.kind) {
    case ScriptStep::Kind::kForward:
    case ScriptStep::Kind::kReserve: return RunForward(step, status, expected);
    case ScriptStep::Kind::kPrepare:
    case ScriptStep::Kind::kRestore: return RunRestore(step, status, expected);
    case ScriptStep::Kind::kCopy: RunCopy(step, status, expected); return {};
    case ScriptStep::Kind::kRemove:
      RunRemove(step.sequence, step.begin, step.end, status, expected);
      return {};
    case ScriptStep::Kind::kCompact:
      if (cache_->memory() == nullptr) return {};
      status = cache_->memory()->Compact();
      reference_->EndPass();
      return {};
    case ScriptStep::Kind::kEvict:
      expected = reference_->CheckEvict(step.sequence);
      status = cache_->EvictWindow(SequenceId{step.sequence});
      if (expected == StatusCode::kOk) reference_->Evict(step.sequence);
      return {};
    case ScriptStep::Kind::kAccept: RunAccept(step, status, expected); return {};
    case ScriptStep::Kind::kSnapshot: return RunSnapshot(step, status, expected);
    case ScriptStep::Kind::kBring: return RunBring(step, status, expected);
    case ScriptStep::Kind::kMerge: return RunMerge(step, status, expected);
    case ScriptStep::Kind::kSplit: return RunSplit(step, status, expected);
    case ScriptStep::Kind::kDrop: slots_[step.slot] = {}; return {};
    case ScriptStep::Kind::kMaterialize:
      if (slots_[step.slot].real != nullptr)
        status = cache_->snapshots()->Materialize(*slots_[step.slot].real);
      return {};
    case ScriptStep::Kind::kCapture: {
      const std::vector<Position> lengths(step.accepted.begin(), step.accepted.end());
      expected = reference_->CheckSchedule(step.sequence, step.begin, lengths);
      status =
          cache_->snapshots()->ScheduleCaptures(SequenceId{step.sequence}, step.begin, lengths);
      if (expected != StatusCode::kOk) return {};
      reference_->Schedule(step.sequence, step.begin, lengths);
      scheduled_[step.sequence] = true;
      return {};
    }
    case ScriptStep::Kind::kTake: return RunTake(step, status, expected);
    case ScriptStep::Kind::kExport: return RunExport(step, status);
    case ScriptStep::Kind::kBegin: RunBegin(step, status, expected); return {};
    case ScriptStep::Kind::kCommit: RunCommit(step, status, expected); return {};
    case ScriptStep::Kind::kRollBack: RollBack(step.slot); return {};
  }
  return {};
}

void CacheDriver::RollBack(int slot) {
  if (!transactions_[slot].has_value()) return;
  transactions_[slot].reset();  // without a commit
  reference_->RollBack(members_[slot]);
  members_[slot].clear();
}

void CacheDriver::RunBegin(const ScriptStep& step, Status& status, StatusCode& expected) {
  RollBack(step.slot);
  std::vector<SequenceLength> members;
  for (const TestToken& token : step.tokens) {
    members.push_back({SequenceId{token.sequence}, token.position});
  }
  expected = step.begin < 1 ? StatusCode::kInvalidArgument
                            : reference_->CheckTransaction(members, step.begin);
  Cache* const caches[] = {cache_.get()};
  auto begun =
      Transaction::Begin(caches, members, {.max_tokens = step.begin, .isolated = step.isolated});
  status = begun.status();
  if (!status.ok() || expected != StatusCode::kOk) return;
  reference_->BeginTransaction(members, step.begin);
  if (members.empty()) return;  // ends at once
  transactions_[step.slot] = std::move(*begun);
  members_[step.slot] = std::move(members);
  isolated_[step.slot] = step.isolated;
  max_tokens_[step.slot] = step.begin;
}

// A transaction continues after an invalid commit. An error of the backend rolls it back.
void CacheDriver::RunCommit(const ScriptStep& step, Status& status, StatusCode& expected) {
  std::optional<Transaction>& transaction = transactions_[step.slot];
  if (!transaction.has_value()) return;
  std::vector<SequenceLength> kept = members_[step.slot];
  bool good = !isolated_[step.slot] && step.accepted.size() == kept.size();
  for (std::size_t i = 0; i < kept.size() && good; ++i) {
    good = step.accepted[i] >= 0;
    kept[i].length += step.accepted[i];
  }
  expected = good ? reference_->CheckCommit(kept) : StatusCode::kInvalidArgument;
  status = transaction->Commit(step.accepted);
  if (expected != StatusCode::kOk) return;
  if (status.ok()) {
    reference_->Commit(kept);
  } else {
    reference_->RollBack(members_[step.slot]);
  }
  transaction.reset();
  members_[step.slot].clear();
}

Difference CacheDriver::RunSnapshot(const ScriptStep& step, Status& status, StatusCode& expected) {
  expected = reference_->CheckSnapshot(step.sequence, step.begin, step.end);
  auto real = cache_->snapshots()->TakeSnapshot(SequenceId{step.sequence}, step.begin, step.end);
  status = real.status();
  if (!status.ok() || expected != StatusCode::kOk) return {};
  Slot slot{std::move(*real), reference_->TakeSnapshot(step.sequence, step.begin, step.end)};
  if ((slot.real == nullptr) != (slot.reference == nullptr)) return "null differs";
  if (slot.real != nullptr && slot.real->HeldBytes() != 0) return "the snapshot is not lazy";
  slots_[step.slot] = std::move(slot);
  return {};
}

Difference CacheDriver::RunBring(const ScriptStep& step, Status& status, StatusCode& expected) {
  const Slot none;
  const Slot& slot = step.slot < 0 ? none : slots_[step.slot];
  const ReferenceSnapshot* const own = slot.reference.get();
  expected = reference_->CheckRestore(step.sequence, own, step.begin);
  const StatusCode checked =
      cache_->snapshots()
          ->CheckRestore(SequenceId{step.sequence}, slot.real.get(), step.begin)
          .code();
  if (checked != expected) return "CheckRestore returned " + CodeText(checked);
  const std::int64_t held = slot.real == nullptr ? 0 : slot.real->HeldBytes();
  status = cache_->snapshots()->Restore(SequenceId{step.sequence}, slot.real.get(), step.begin);
  if (slot.real != nullptr && slot.real->HeldBytes() != held) {
    return "a restore changed the bytes that its snapshot holds";
  }
  if (status.ok() && expected == StatusCode::kOk) {
    reference_->Restore(step.sequence, own, step.begin);
  }
  return {};
}

Difference CacheDriver::RunMerge(const ScriptStep& step, Status& status, StatusCode& expected) {
  Slot& first = slots_[step.slot];
  Slot& second = slots_[step.target];
  const bool good = first.real != nullptr && second.real != nullptr && &first != &second &&
                    first.real->end() == second.real->begin();
  expected = good ? StatusCode::kOk : StatusCode::kInvalidArgument;
  const std::int64_t bytes = cache_->snapshots()->SnapshotBytes();
  const bool lazy = good && first.real->HeldBytes() == 0 && second.real->HeldBytes() == 0;
  auto merged = cache_->snapshots()->MergeSnapshots(first.real, second.real);
  status = merged.status();
  if (cache_->snapshots()->SnapshotBytes() > bytes) return "a merge took host memory";
  if (lazy && merged.ok() && (*merged)->HeldBytes() != 0) return "a merge of lazy snapshots copied";
  if (!status.ok() || !good) return {};
  if (first.real != nullptr || second.real != nullptr) return "a merged snapshot was not taken";
  first = {std::move(*merged), reference_->Merge(first.reference, second.reference)};
  second = {};
  return {};
}

Difference CacheDriver::RunSplit(const ScriptStep& step, Status& status, StatusCode& expected) {
  Slot& slot = slots_[step.slot];
  if (step.slot == step.target) return {};
  const bool good =
      slot.real != nullptr && step.begin > slot.real->begin() && step.begin < slot.real->end();
  expected = good ? StatusCode::kOk : StatusCode::kInvalidArgument;
  const std::int64_t bytes = cache_->snapshots()->SnapshotBytes();
  const bool lazy = good && slot.real->HeldBytes() == 0;
  auto parts = cache_->snapshots()->SplitSnapshot(slot.real, step.begin);
  status = parts.status();
  if (cache_->snapshots()->SnapshotBytes() != bytes) return "a split changed the host memory";
  if (lazy && parts.ok() && parts->second->HeldBytes() != 0) return "a split of a lazy one copied";
  if (!status.ok() || !good) return {};
  if (slot.real != nullptr) return "a split snapshot was not taken";
  auto [first, second] = reference_->Split(slot.reference, step.begin);
  if ((first == nullptr) != (parts->first == nullptr)) return "the first part's null differs";
  slots_[step.target] = {std::move(parts->second), second};
  slot = {std::move(parts->first), first};
  return {};
}

Difference CacheDriver::RunTake(const ScriptStep& step, Status& status, StatusCode& expected) {
  const bool known = step.sequence >= 0 && step.sequence < setup_.options.max_sequences;
  auto taken = cache_->snapshots()->TakeCaptures(SequenceId{step.sequence});
  status = taken.status();
  expected = known ? StatusCode::kOk : StatusCode::kInvalidArgument;
  if (!status.ok() || !known) return {};
  scheduled_[step.sequence] = false;
  const std::vector<ReferenceSnapshotPtr> own = reference_->TakeCaptures(step.sequence);
  if (own.size() != taken->size()) return std::to_string(taken->size()) + " captures";
  for (std::size_t i = 0; i < own.size(); ++i) {
    if ((own[i] == nullptr) != ((*taken)[i] == nullptr)) {
      return "capture " + std::to_string(i) + ": null differs";
    }
    if (own[i] == nullptr) continue;
    slots_[(step.slot + i) % slots_.size()] = {std::move((*taken)[i]), own[i]};
  }
  return {};
}

// The imported snapshot takes the place of the exported one. Damaged bytes must be refused.
Difference CacheDriver::RunExport(const ScriptStep& step, Status& status) {
  Slot& slot = slots_[step.slot];
  if (slot.real == nullptr) return {};
  const auto size = cache_->snapshots()->ExportSize(*slot.real);
  status = size.status();
  if (!status.ok()) return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>(*size));
  status = cache_->snapshots()->Export(*slot.real, bytes);
  if (!status.ok()) return {};
  std::vector<std::byte> damaged = bytes;
  damaged[next_content_ * 7 % 64] ^= std::byte{0x10};
  if (cache_->snapshots()->Import(damaged).ok()) return "a damaged header was imported";
  damaged = bytes;
  damaged.resize(bytes.size() - 1 - next_content_ % 64);
  if (cache_->snapshots()->Import(damaged).ok()) return "cut bytes were imported";
  auto imported = cache_->snapshots()->Import(bytes);
  status = imported.status();
  if (!status.ok()) return {};
  std::vector<std::byte> again(bytes.size());
  const auto again_size = cache_->snapshots()->ExportSize(**imported);
  if (!again_size.ok() || *again_size != *size) return "the imported snapshot has another size";
  status = cache_->snapshots()->Export(**imported, again);
  if (!status.ok()) return {};
  if (again != bytes) return "the imported snapshot has other bytes";
  slot.real = std::move(*imported);
  return {};
}

// The real cache may materialise snapshots in any call.
Difference CacheDriver::FollowSnapshots() {
  bool any = std::find(scheduled_.begin(), scheduled_.end(), true) != scheduled_.end();
  for (Slot& slot : slots_) {
    if (slot.real == nullptr) continue;
    any = true;
    if (slot.real->begin() != slot.reference->begin || slot.real->end() != slot.reference->end) {
      return "a snapshot is [" + std::to_string(slot.real->begin()) + ", " +
             std::to_string(slot.real->end()) + "), expected [" +
             std::to_string(slot.reference->begin) + ", " + std::to_string(slot.reference->end) +
             ")";
    }
    reference_->Follow(*slot.reference, *slot.real);
  }
  reference_->set_snapshots(any);
  const CacheSnapshots* const snapshots = cache_->snapshots();
  if (snapshots != nullptr && snapshots->SnapshotBytes() != hooked_bytes_) {
    return "SnapshotBytes is " + std::to_string(snapshots->SnapshotBytes()) +
           ", the hook counted " + std::to_string(hooked_bytes_);
  }
  if (!any && hooked_bytes_ != 0) return "host memory without a snapshot";
  return {};
}

// By contract, the caller removes the whole sequence after an error in a removal, and that never
// fails.
Difference CacheDriver::RemoveBroken(int sequence) {
  Status status;
  StatusCode expected = StatusCode::kOk;
  RunRemove(sequence, 0, kEndOfSequence, status, expected);
  if (status.ok() && expected == StatusCode::kOk) return {};
  return "removing the broken sequence: " + status.message();
}

Difference CacheDriver::CheckCall(const Status& status, StatusCode expected) const {
  // A failure of the backend must come back as an error. Otherwise the reference model decides.
  if (fired_ && !status.ok() && status.code() != StatusCode::kInternal) return {};
  if (!fired_ && status.code() == expected) return {};
  return "returned " + CodeText(status.code()) + " (" + status.message() + "), expected " +
         (fired_ ? "an error" : CodeText(expected));
}

Difference CacheDriver::RunForward(const ScriptStep& step, Status& status, StatusCode& expected) {
  const ForwardMode mode =
      step.kind == ScriptStep::Kind::kReserve ? ForwardMode::kReserve : ForwardMode::kCompute;
  TestBatch batch{step.tokens, step.items, step.parents};
  for (TestToken& token : batch.tokens) token.content = next_content_++;
  status = StartBatch(*cache_, batch, mode);
  expected = reference_->Prepare(batch, mode);
  if (!status.ok() || expected != StatusCode::kOk) return {};
  reference_->Begin(batch, mode);
  // Calls SetCausal before the layers run, or after a mask was made.
  const bool late = next_content_ % 2 == 0;
  if (!late && !SetCausal(step, batch, mode)) return "SetCausal returned another code";
  status = reference_->RunPass(*cache_, batch, step);
  if (!late || !status.ok()) return {};
  (void)cache_->Get().ok();
  return SetCausal(step, batch, mode) ? Difference() : "a late SetCausal returned another code";
}

bool CacheDriver::SetCausal(const ScriptStep& step, const TestBatch& batch, ForwardMode mode) {
  if (step.except.empty()) return true;
  const std::vector<std::int32_t> except(step.except.begin(), step.except.end());
  const bool good =
      std::all_of(except.begin(), except.end(),
                  [&](std::int32_t query) {
                    return query >= 0 && static_cast<std::size_t>(query) < batch.tokens.size();
                  }) &&
      (batch.parents.empty() || mode == ForwardMode::kReserve);
  if (cache_->SetCausal(except).ok() != good) return false;
  if (good && mode == ForwardMode::kCompute) reference_->SetNonCausal(step.except);
  return true;
}

// By definition, PrepareRestore returns the largest length up to the target that can be restored.
Difference CacheDriver::RunRestore(const ScriptStep& step, Status& status, StatusCode& expected) {
  const bool known = step.sequence >= 0 && step.sequence < setup_.options.max_sequences;
  Position best = known ? std::max(step.begin, 0) : 0;
  while (best > 0 && !reference_->CanGoBackTo(step.sequence, best)) --best;
  const Result<Position> restored = cache_->PrepareRestore(SequenceId{step.sequence}, step.begin);
  if (restored.ok() != known) {
    return known ? "PrepareRestore failed" : "PrepareRestore of an unknown sequence succeeded";
  }
  const Position kept = restored.ok() ? *restored : 0;
  if (kept != best) {
    return "PrepareRestore returned " + std::to_string(kept) + ", expected " + std::to_string(best);
  }
  if (known) reference_->PrepareRestore(step.sequence, best);
  if (step.kind == ScriptStep::Kind::kRestore) {
    RunRemove(step.sequence, kept, kEndOfSequence, status, expected);
  }
  return {};
}

// An error of the backend drops all drafts.
void CacheDriver::RunAccept(const ScriptStep& step, Status& status, StatusCode& expected) {
  expected = reference_->CheckAccept(step.accepted);
  status = cache_->AcceptDrafts(step.accepted);
  if (expected == StatusCode::kInvalidArgument) return;
  if (status.ok()) {
    reference_->Accept(step.accepted);
  } else {
    reference_->EndPass();
  }
}

void CacheDriver::RunCopy(const ScriptStep& step, Status& status, StatusCode& expected) {
  expected = reference_->CheckCopy(step.sequence, step.target, step.begin);
  status = cache_->CopyPrefix(SequenceId{step.sequence}, SequenceId{step.target}, step.begin);
  if (expected == StatusCode::kOk) reference_->Copy(step.sequence, step.target, step.begin);
}

void CacheDriver::RunRemove(int sequence, Position begin, Position end, Status& status,
                            StatusCode& expected) {
  expected = reference_->CheckRemove(sequence, begin, end);
  const StatusCode checked = cache_->CheckRemove(SequenceId{sequence}, begin, end).code();
  status = cache_->Remove(SequenceId{sequence}, begin, end);
  if (checked != expected) {
    status = {StatusCode::kInternal, "CheckRemove returned " + CodeText(checked)};
  }
  if (expected != StatusCode::kOk) return;
  reference_->Remove(sequence, begin, end);
  if (!status.ok()) reference_->TakeCaptures(sequence);  // a failed removal cancels them
}

Difference CacheDriver::CheckAll() {
  if (Difference difference = FollowSnapshots()) return difference;
  if (Difference difference = reference_->Check()) return difference;
  if (const CacheMemory* const memory = cache_->memory();
      memory != nullptr && memory->AllocatedBytes() != backend_->live_bytes()) {
    return "AllocatedBytes is " + std::to_string(memory->AllocatedBytes()) + ", the backend lent " +
           std::to_string(backend_->live_bytes());
  }
  return CheckResume();
}

Difference CacheDriver::CheckResume() const {
  for (int s = -1; s <= setup_.options.max_sequences; ++s) {
    Position end = setup_.options.capacity + 4;
    const bool known = s >= 0 && s < setup_.options.max_sequences;
    const Position length = known ? reference_->length(s) : 0;
    end = std::max(end, length + 2);
    if (cache_->Length(SequenceId{s}) != length) {
      return "Length is " + std::to_string(cache_->Length(SequenceId{s})) + " for sequence " +
             std::to_string(s) + ", expected " + std::to_string(length);
    }
    for (Position position = -1; position < end; ++position) {
      if (cache_->CanResume(SequenceId{s}, position) != reference_->CanResume(s, position)) {
        return "CanResume differs for " + At(s, position);
      }
    }
  }
  return {};
}

Difference CacheDriver::Finish() {
  for (std::size_t i = 0; i < slots_.size(); i += 2) slots_[i] = {};
  transactions_[0].reset();
  cache_->Close();
  transactions_[1].reset();             // a transaction may end after its cache was closed
  for (Slot& slot : slots_) slot = {};  // snapshots may outlive their cache
  const std::int64_t held = cache_->memory() == nullptr ? 0 : cache_->memory()->AllocatedBytes();
  if (backend_->live_bytes() != 0 || held != 0) {
    return "Close left " + std::to_string(backend_->live_bytes()) + " bytes";
  }
  cache_->Close();
  return {};
}

std::optional<ScriptFailure> RunScript(const DriverSetup& setup, const Script& script) {
  CacheDriver driver(setup);
  for (std::size_t i = 0; i < script.size(); ++i) {
    if (auto difference = driver.Step(script[i])) return ScriptFailure{i, *difference};
  }
  if (auto difference = driver.Finish()) return ScriptFailure{script.size(), *difference};
  return {};
}

}  // namespace kvcache::testing
