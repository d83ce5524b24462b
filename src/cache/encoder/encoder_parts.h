// What the calls of an encoder cache share: its options, the bytes of its layers, and the output of each
// sequence.
//
//   entry      `stride` neighbouring cells for one output, of which `tokens` are used
//   sequence   has an entry or none; forks share an entry, and a Put then takes another one
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cells/ref_counted_cells.h"
#include "cache/encoder/encoder_snapshot_pool.h"
#include "cache/open_transactions.h"
#include "cache/pass/cache_storage.h"
#include "cache/snapshot/capture_schedule.h"
#include "kvcache/encoder_cache.h"

namespace kvcache {

struct EncoderParts {
  explicit EncoderParts(EncoderOptions encoder) : options(std::move(encoder)) {}

  // Checks the sizes, and sets the greatest output and the stride. Errors: as for Cache::Init.
  Status CheckInit(const KvBackend& backend, const CacheOptions& sizes);
  // Makes all parts but the storage. May throw std::bad_alloc. REQUIRES: CheckInit returned Ok.
  void Reset(const CacheOptions& sizes);
  // Opens the storage. REQUIRES: Reset.
  void Open(KvBackend& backend, const CacheOptions& sizes);
  // Frees everything. Snapshots that outlive the cache are worth nothing then.
  void Close();

  // Returns the cells of the output; none without an entry.
  CellRun CellsOf(const EncoderOutput& output) const;
  // Drops the sequence's output, but not the memory of the first one that was replaced.
  void Drop(SequenceId id);

  EncoderOptions options;
  CacheStorage storage;
  std::int32_t stride = 0;  // cells of an entry
  RefCountedCells entries;
  std::vector<EncoderOutput> outputs;  // [sequences]
  std::vector<Position> lengths;       // [sequences]: the last position seen + 1
  // An output is captured when it is replaced, or by TakeCaptures.
  CaptureSchedule<EncoderSnapshot> captures;
  OpenTransactions transactions;
  std::shared_ptr<EncoderSnapshotPool> pool;  // null: not open
};

}  // namespace kvcache
