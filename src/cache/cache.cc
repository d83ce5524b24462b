// What a cache kind without snapshots, transactions and views returns.
#include "kvcache/cache.h"

namespace kvcache {
namespace {

Status NoSnapshots() {
  return {StatusCode::kUnsupported, "this kind of cache has no snapshots"};
}

Status NoTransactions() {
  return {StatusCode::kUnsupported, "this kind of cache has no transactions"};
}

}  // namespace

Status Cache::FindCells(SequenceId, Position, Position, std::vector<HistoryRun>&) const {
  return {StatusCode::kUnsupported, "this kind of cache has no cells at positions"};
}

Result<std::unique_ptr<Snapshot>> Cache::TakeSnapshot(SequenceId, Position, Position) {
  return NoSnapshots();
}
Status Cache::ScheduleCaptures(SequenceId, Position, std::span<const Position>) {
  return NoSnapshots();
}
Result<std::vector<std::unique_ptr<Snapshot>>> Cache::TakeCaptures(SequenceId) {
  return NoSnapshots();
}
Status Cache::CheckRestore(SequenceId, const Snapshot*, Position) const {
  return NoSnapshots();
}
Status Cache::BeginRestore(SequenceId, const Snapshot*, Position) {
  return NoSnapshots();
}
Result<std::unique_ptr<Snapshot>> Cache::MergeSnapshots(std::unique_ptr<Snapshot>&,
                                                        std::unique_ptr<Snapshot>&) {
  return NoSnapshots();
}
Status Cache::PrepareMerge(Snapshot&, Snapshot&) {
  return NoSnapshots();
}
Result<SnapshotParts> Cache::SplitSnapshot(std::unique_ptr<Snapshot>&, Position) {
  return NoSnapshots();
}
Status Cache::Materialize(Snapshot&) {
  return NoSnapshots();
}
Result<std::string> Cache::Fingerprint() const {
  return NoSnapshots();
}
Result<std::int64_t> Cache::ExportSize(const Snapshot&) const {
  return NoSnapshots();
}
Status Cache::Export(const Snapshot&, std::span<std::byte>) {
  return NoSnapshots();
}
Result<std::unique_ptr<Snapshot>> Cache::Import(std::span<const std::byte>) {
  return NoSnapshots();
}

Status Cache::PrepareTransaction(std::span<const SequenceLength>, Position) {
  return NoTransactions();
}
Status Cache::CheckCommit(std::span<const SequenceLength>) const {
  return NoTransactions();
}

}  // namespace kvcache
