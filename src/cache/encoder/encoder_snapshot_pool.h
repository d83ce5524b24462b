// A snapshot of the encoder cache: an output, in an entry that it shares or in host memory; or no
// output, if none belongs to a token of the range.
//
// The pool is the part of the cache that its snapshots refer to. It outlives the cache if a snapshot
// does.
//
// Thread safety: as in kvcache/snapshot.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/cells/kv_page.h"
#include "cache/cells/ref_counted_cells.h"
#include "cache/pass/cache_storage.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "kvcache/snapshot.h"

namespace kvcache {

// The output of a sequence.
struct EncoderOutput {
  static constexpr std::int32_t kNone = -1;

  std::int32_t entry = kNone;
  std::int32_t tokens = 0;
  Position position = 0;  // of the token that it belongs to
  // Position of the first output that was replaced; kEndOfSequence: none was. The sequence cannot
  // resume after it, up to the position of the current output.
  Position first_gone = kEndOfSequence;
};

class EncoderSnapshotPool;

class EncoderSnapshot final : public Snapshot {
 public:
  EncoderSnapshot(std::shared_ptr<EncoderSnapshotPool> pool, Position begin, Position end)
      : Snapshot(begin, end), pool_(std::move(pool)) {}
  ~EncoderSnapshot() override;

  std::int64_t HeldBytes() const override { return page_ == nullptr ? 0 : page_->bytes(); }
  std::int64_t HeldCells() const override { return output_.entry == EncoderOutput::kNone ? 0 : 1; }

  // Returns whether it has the output that queries at `position` see.
  bool HasOutputBefore(Position position) const {
    return HasOutput() && output_.position < position;
  }

  const EncoderOutput& output() const { return output_; }
  bool HasOutput() const { return page_ != nullptr || output_.entry != EncoderOutput::kNone; }
  const EncoderSnapshotPool* pool() const { return pool_.get(); }

 private:
  friend class EncoderSnapshotPool;

  std::shared_ptr<EncoderSnapshotPool> pool_;
  EncoderOutput output_;                // the entry is kNone once it is in a page
  std::shared_ptr<const KvPage> page_;  // null: in the entry
};

class EncoderSnapshotPool : public std::enable_shared_from_this<EncoderSnapshotPool> {
 public:
  // They must stay valid until Detach. `stride`: cells of an entry.
  EncoderSnapshotPool(RefCountedCells& entries, CacheStorage& storage, std::int32_t stride)
      : entries_(&entries),
        storage_(&storage),
        stride_(stride),
        host_(std::make_shared<HostBytes>()) {}
  void Detach();

  HostBytes& host() const { return *host_; }

  // Returns a snapshot that shares the output's entry, if it has one. Errors: kOutOfMemory.
  Result<std::unique_ptr<EncoderSnapshot>> Share(const EncoderOutput& output, Position begin,
                                                 Position end);
  // Exchanges the outputs of two snapshots.
  void Swap(EncoderSnapshot& a, EncoderSnapshot& b);
  Status Materialize(EncoderSnapshot& snapshot);
  // Materialises snapshots, the oldest first, until an entry is free or `own`, an entry or kNone,
  // has no other user. Never `keep`. Errors: kOutOfMemory, and the backend's.
  Status EnsureCapacity(std::int32_t own, const EncoderSnapshot* keep);
  // As in SnapshotPool (causal_snapshot_pool.h), for an output of `tokens` tokens. May throw std::bad_alloc.
  Status Describe(const EncoderSnapshot& snapshot, SnapshotHeader& header) const;
  Status CopyOut(const EncoderSnapshot& snapshot, const SnapshotHeader& header,
                 std::span<std::byte> bytes) const;
  Result<std::unique_ptr<EncoderSnapshot>> MakeFrom(const SnapshotHeader& header,
                                                    const EncoderOutput& output,
                                                    std::span<const std::byte> bytes);

  // Returns kInvalidArgument if the page has a layer of another shape than the cache has.
  Status CheckShapes(const EncoderSnapshot& snapshot) const;
  // Copies the snapshot's page to an entry. Errors: CheckShapes', kOutOfMemory, and the backend's.
  Status CopyIn(const EncoderSnapshot& snapshot, std::int32_t entry);

 private:
  friend class EncoderSnapshot;

  RefCountedCells* entries_;  // null after Detach
  CacheStorage* storage_;
  std::int32_t stride_ = 0;
  std::shared_ptr<HostBytes> host_;
  std::vector<EncoderSnapshot*> lazy_;  // oldest first
};

}  // namespace kvcache
