// A snapshot of the recurrent cache: a snapshot of its attention, and one state, which is a cell
// that it shares or a page of host memory.
//
//   [0, 120)   attention [0, 120)     state after 120 tokens: cell 7, or a page
//
// The pool is the part of the cache that its snapshots refer to. It outlives the cache if a snapshot
// does.
//
// Thread safety: as in kvcache/snapshot.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "cache/cells/kv_page.h"
#include "cache/cells/linked_list.h"
#include "cache/recurrent/state_store.h"
#include "cache/recurrent/state_table.h"
#include "kvcache/kv_backend.h"
#include "kvcache/snapshot.h"
#include "kvcache/status.h"
#include "platform/aligned_buffer.h"

namespace kvcache {

// A state in host memory: layer by layer, the convolution state before the recurrent one.
class StatePage {
 public:
  // Returns a page of `bytes` bytes with any contents. Errors: kOutOfMemory.
  static Result<std::shared_ptr<StatePage>> Make(std::int64_t bytes,
                                                 std::shared_ptr<HostBytes> count);
  ~StatePage();
  StatePage(const StatePage&) = delete;
  StatePage& operator=(const StatePage&) = delete;

  std::span<std::byte> bytes() const { return {memory_.data(), memory_.size_bytes()}; }

 private:
  StatePage() = default;

  AlignedBuffer memory_;
  std::shared_ptr<HostBytes> count_;
};

class RecurrentSnapshotPool;

class RecurrentSnapshot final : public Snapshot, public ListLinks<RecurrentSnapshot> {
 public:
  RecurrentSnapshot(std::shared_ptr<RecurrentSnapshotPool> pool, Position begin, Position end)
      : Snapshot(begin, end), pool_(std::move(pool)) {}
  ~RecurrentSnapshot() override;

  std::int64_t HeldBytes() const override;
  std::int64_t HeldCells() const override;
  const Snapshot* Part(std::size_t i) const override { return i == 0 ? attention.get() : nullptr; }

  // The length of the sequence that the state belongs to: end(), unless a wrapper has merged the
  // snapshot with one that has no state.
  Position tokens() const { return state_.tokens; }
  // Returns the cell of the state; StatePoint::kNone if it is in a page.
  std::int32_t cell() const { return state_.cell; }
  const RecurrentSnapshotPool* pool() const { return pool_.get(); }

  std::unique_ptr<Snapshot> attention;  // null: nothing to hold

 private:
  friend class RecurrentSnapshotPool;

  std::shared_ptr<RecurrentSnapshotPool> pool_;
  StatePoint state_;
  std::shared_ptr<const StatePage> page_;  // null: in the cell
};

class RecurrentSnapshotPool : public std::enable_shared_from_this<RecurrentSnapshotPool> {
 public:
  using OwnPtr = std::unique_ptr<RecurrentSnapshot>;

  // All must stay valid until Detach. May throw std::bad_alloc.
  RecurrentSnapshotPool(KvBackend& backend, StateTable& states, StateStore& conv, StateStore& state,
                        int layers)
      : backend_(&backend),
        states_(&states),
        stores_{&conv, &state},
        layers_(layers),
        host_(std::make_shared<HostBytes>()),
        held_(states.cells().size()) {}
  // Lets go of the cells of all snapshots, which become worthless.
  void Detach();

  HostBytes& host() const { return *host_; }
  // Returns the oldest snapshot whose state is in a cell; for inspection.
  const RecurrentSnapshot* oldest() const { return lazy_.oldest(); }
  // Returns the bytes of a state, in all layers.
  std::int64_t StateBytes() const;

  // Returns a snapshot without a state. Errors: kOutOfMemory.
  Result<OwnPtr> Make(Position begin, Position end);
  // Gives the state to a snapshot that has none, and adds a reference to its cell.
  void Hold(RecurrentSnapshot& snapshot, const StatePoint& state);

  // Copies the state to host memory and lets go of its cell. Errors: kOutOfMemory, and the
  // backend's; nothing changes.
  Status Materialize(RecurrentSnapshot& snapshot);
  // Materialises states, the oldest first, until `needed` cells are free once a reference to each of
  // the cells `dropped` is gone. Only states that free a cell are copied. Errors: kCacheFull before
  // anything is copied; kOutOfMemory, and the backend's, after some were.
  Status EnsureCapacity(std::int32_t needed, std::span<const std::int32_t> dropped);
  // Returns a cell with the snapshot's state, and with a reference for the caller: the cell that it
  // shares, or a new one with a copy. Errors: as EnsureCapacity, and the backend's; nothing changes but
  // other snapshots.
  Result<std::int32_t> Stage(const RecurrentSnapshot& snapshot);

  // Copies the state to StateBytes() bytes.
  Status CopyOut(const RecurrentSnapshot& snapshot, std::span<std::byte> bytes) const;
  // Gives a snapshot without a state the one in the bytes, after `tokens` tokens. Errors:
  // kOutOfMemory.
  Status CopyIn(RecurrentSnapshot& snapshot, std::span<const std::byte> bytes, Position tokens);

 private:
  friend class RecurrentSnapshot;

  void List(RecurrentSnapshot& snapshot);
  void Unlist(RecurrentSnapshot& snapshot);
  // Lets all snapshots that share the snapshot's cell have the page instead.
  void MoveToPage(std::int32_t cell, const std::shared_ptr<const StatePage>& page);
  void SetPage(RecurrentSnapshot& snapshot, std::shared_ptr<const StatePage> page);
  Result<std::shared_ptr<StatePage>> PageOf(std::int32_t cell) const;
  // Calls copy(part, begin, size) for the parts of a cell's state, which are at these places in its bytes.
  template <typename Copy>
  Status ForEachPart(std::int32_t cell, const Copy& copy) const;
  Status CopyCell(std::int32_t cell, std::span<std::byte> bytes) const;
  Status FillCell(std::int32_t cell, std::span<const std::byte> bytes);
  // Returns whether the cell is free once these references and those of snapshots are gone.
  bool Frees(std::int32_t cell, std::span<const std::int32_t> dropped) const;
  // Returns the number of cells that are free once these references are gone and, if `materialised`,
  // no snapshot is in a cell.
  std::int32_t CountFree(std::span<const std::int32_t> dropped, bool materialised) const;

  KvBackend* backend_;
  StateTable* states_;  // null after Detach
  StateStore* stores_[2];
  int layers_;
  std::shared_ptr<HostBytes> host_;
  std::vector<std::int32_t> held_;  // [cells]: snapshots that hold it
  LinkedList<RecurrentSnapshot>
      lazy_;  // the snapshots whose state is in a cell other than the zeros
};

}  // namespace kvcache
