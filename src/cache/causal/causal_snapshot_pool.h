// A snapshot of the causal cache: positions in cells that it holds, and positions in pages of host
// memory.
//
//   [0, 512) page A   [512, 700) page B   [700, 730) held cells
//
// The pool is the part of the cache that its snapshots refer to. It outlives the cache if a snapshot
// does; Detach then lets go of the cells.
//
// Thread safety: as in kvcache/snapshot.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/cells/cell_table.h"
#include "cache/cells/kv_page.h"
#include "cache/pass/cache_storage.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "kvcache/snapshot.h"

namespace kvcache {

class SnapshotPool;

class CausalSnapshot final : public Snapshot, public ListLinks<CausalSnapshot> {
 public:
  // Positions [begin, end), all in `page`.
  struct Piece {
    Position begin = 0;
    Position end = 0;
    std::shared_ptr<const KvPage> page;
  };

  CausalSnapshot(std::shared_ptr<SnapshotPool> pool, Position begin, Position end)
      : Snapshot(begin, end), pool_(std::move(pool)) {}
  ~CausalSnapshot() override;

  std::int64_t HeldBytes() const override;
  std::int64_t HeldCells() const override;

  // Returns the lowest position whose key and value it has; `end()` if it has none.
  Position first() const;
  const SnapshotPool* pool() const { return pool_.get(); }

 private:
  friend class SnapshotPool;

  std::shared_ptr<SnapshotPool> pool_;
  std::vector<Piece> pieces_;  // ascending
  CellHold hold_;              // the other positions
};

class SnapshotPool : public std::enable_shared_from_this<SnapshotPool> {
 public:
  using OwnPtr = std::unique_ptr<CausalSnapshot>;

  // `cells` and `storage` must stay valid until Detach. May throw std::bad_alloc.
  SnapshotPool(CellTable& cells, CacheStorage& storage)
      : cells_(&cells), storage_(&storage), host_(std::make_shared<HostBytes>()) {}
  // Lets go of the cells of all snapshots, which become worthless.
  void Detach();

  HostBytes& host() const { return *host_; }

  // Returns an empty snapshot with memory for `runs` runs. Errors: kOutOfMemory.
  Result<OwnPtr> Make(Position begin, Position end, std::size_t runs);
  // Adds the sequence's positions [begin, end) to a snapshot that holds positions below `begin` only.
  // REQUIRES: memory for the runs.
  void Hold(CausalSnapshot& snapshot, SequenceId id, Position begin, Position end);
  // Lets go of everything that the snapshot holds or owns.
  void Clear(CausalSnapshot& snapshot);

  // Materialises snapshots, the oldest first, until `needed` cells are free once these evictions
  // are done. Never `keep`. Errors: kCacheFull, with the numbers of cells in `available`, before
  // anything is materialised; kOutOfMemory, and the backend's, after some were.
  Status EnsureCapacity(std::int32_t needed, std::span<const Eviction> evictions,
                        const CausalSnapshot* keep, std::int32_t& available);
  // Returns the number of cells that are free once these evictions are done, without the drafts and
  // all snapshots, or less if that is at least `needed`. Errors: kOutOfMemory.
  Result<std::int32_t> CountAvailable(std::int64_t needed,
                                      std::span<const Eviction> evictions) const;
  // Returns the number of cells that are free without the drafts, the sequence's positions from
  // `begin` on, and all snapshots but `keep`. Errors: kOutOfMemory.
  Result<std::int32_t> CountAvailable(const CausalSnapshot* keep, SequenceId id,
                                      Position begin) const;
  // CellTable::CheckRemoveMiddle, as if all snapshots were materialised; and materialises them,
  // the oldest first, until the removal fits. Errors: kOutOfMemory, and the backend's.
  Status CheckRemoveMiddle(SequenceId id, Position end) const;
  Status EnsureCapacityForRemoval(SequenceId id, Position end);
  Status Materialize(CausalSnapshot& snapshot);

  // Returns kInvalidArgument if a layer of a page has another shape than in the cache or in the first page.
  Status CheckShapes(const CausalSnapshot& snapshot) const;
  // Fills `staged` with the snapshot's positions below `target`: shares held cells, and claims cells
  // for the others and copies their bytes. Errors: CheckShapes', kOutOfMemory, the backend's;
  // `staged` is empty then. REQUIRES: CountOwned cells are free.
  Status Stage(const CausalSnapshot& snapshot, SequenceId id, Position target, CellHold& staged);
  // Returns the number of positions below `target` that are in pages.
  static std::int32_t CountOwned(const CausalSnapshot& snapshot, Position target);

  // Describes the bytes of an export: ranges of positions, and layers with their size in `payload`. May
  // throw std::bad_alloc.
  Status Describe(const CausalSnapshot& snapshot, SnapshotHeader& header) const;
  // Copies everything to bytes that Describe described, and back into an empty snapshot.
  Status CopyOut(const CausalSnapshot& snapshot, const SnapshotHeader& header,
                 std::span<std::byte> bytes) const;
  Status CopyIn(CausalSnapshot& snapshot, const SnapshotHeader& header,
                std::span<const std::byte> bytes) const;

  // Returns the number of cells in the bytes, and the position of the first one.
  static std::int64_t CellsOf(const SnapshotHeader& header);
  static Position FirstOf(const SnapshotHeader& header);

  // PrepareJoin reserves the memory for Join. Errors: kOutOfMemory. Join moves everything of `child`
  // behind `parent`. Cut moves the part from `position` on out of `snapshot`.
  static Status PrepareJoin(CausalSnapshot& parent, const CausalSnapshot& child);
  void Join(CausalSnapshot& parent, CausalSnapshot& child);
  Result<OwnPtr> Cut(CausalSnapshot& snapshot, Position position);

 private:
  friend class CausalSnapshot;

  void List(CausalSnapshot& snapshot);
  void Unlist(CausalSnapshot& snapshot);
  Result<std::vector<CellHold*>> HoldsExcept(const CausalSnapshot* keep) const;
  Status CopyCellsOut(const CellHold& hold, std::span<const LayerKv> layers, Position first,
                      Position begin, Position end) const;
  bool HasAllLayers(const CausalSnapshot& snapshot, std::span<const LayerKv> layers) const;
  Status CopyIn(const CausalSnapshot::Piece& piece, Position target, const CellHold& staged);

  CellTable* cells_;       // null after Detach
  CacheStorage* storage_;  // null after Detach
  std::shared_ptr<HostBytes> host_;
  LinkedList<CausalSnapshot> lazy_;  // the snapshots that hold cells
};

}  // namespace kvcache
