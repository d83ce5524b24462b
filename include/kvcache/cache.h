// The interface of all cache kinds.
//
// A forward pass starts with StartForward(batch), which claims cells and fixes what the queries
// see. Then, for each layer, the model calls SetLayer and Put, and runs attention over Visible()
// (a fused kernel) or over Get() (dense views and a mask, for any kernel):
//
//   cache->StartForward(batch, ForwardMode::kCompute);
//   for (layer) { cache->SetLayer(layer); cache->Put(k, v); … backend.Attention(…); }
//
// A pass lasts until one of these calls:
//   - a StartForward, AcceptDrafts, CopyPrefix, Remove or Restore that succeeds, or a transaction that
//     begins or ends. If one of them fails, the pass goes on, except where the call says that an error
//     ends it.
//   - Compact, even if it fails
//   - EndPass or Close
//
// Kinds: causal_cache.h, encoder_cache.h, recurrent_cache.h, and wrapper_cache.h for models whose
// layers need several. To add a kind, implement this class. tests/support is a conformance kit that
// checks it; examples/custom_kind shows both.
//
// Thread safety: not thread-safe. Different caches may be used from different threads.
// Errors: after an error the cache is as it was before the call, unless the call says otherwise.
// Source: Ollama's kvcache package (cache.go, causal.go) has this interface in Go.
// docs/from-ollama.md lists the differences.
#pragma once

#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/snapshot.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "kvcache/transaction.h"
#include "kvcache/visibility.h"

namespace kvcache {

enum class ForwardMode : std::uint8_t {
  kCompute,  // claims cells
  // Shows the worst case, so that buffers can be sized for it: every query sees every cell,
  // whatever its position. The pass claims no cell and leaves all sequences as they are. Put
  // allocates the memory of its layer and writes nothing.
  kReserve,
};

struct CacheOptions {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int max_sequences = 1;
  // Tokens per sequence. All sequences share one pool of max_sequences × capacity cells (a cache
  // with a window has another number: causal_cache.h). While the pool has free cells, a sequence
  // may grow past its capacity. Drafts also take cells of the pool, until their pass ends.
  int capacity = 0;
  int max_batch = 1;  // tokens of the largest batch
  // Cells of the pool instead of max_sequences × capacity, for a pool that is shared with snapshots; at
  // least max_batch. A cache with a window has as many besides those of its sequences. A cell takes
  // memory once it was written. 0: as above.
  int cells = 0;
  // Memory of free cells goes back to the system (ReleaseFreeMemory), and tokens go to the lowest cells
  // that are free. Needs a backend with CellMemory (cell_memory.h); with another one nothing changes.
  bool releases_memory = false;
};

// See Cache::ScheduleCaptures.
inline constexpr Position kEachFromZero = -1;

// The result of Get: views of the cells from the first to the last that any query of the batch
// sees, and a mask. Column c is cell `first_cell` + c, so position p of a HistoryRun `run` is
// column run.cell + (p - run.position) - first_cell. The views are valid until the pass ends.
// SetCausal makes the mask invalid: call Get again.
struct DenseKv {
  TensorView k;     // [k_dim, kv_heads, history]
  TensorView v;     // [v_dim, kv_heads, history], or [history, v_dim, kv_heads] if transposed;
                    // if V is in K, the first v_dim values of each key in both cases
  TensorView mask;  // [history, batch padded]: 0 if visible, -inf elsewhere; host memory
  std::int32_t first_cell = 0;
};

// Rotates the keys of `cells` in one layer by `offset` positions, as RoPE does.
using ShiftKeysFn = std::function<Status(int layer, const LayerKv& storage,
                                         std::span<const CellRun> cells, Position offset)>;

class EncoderCache;
class RecurrentCache;

class Cache {
 public:
  virtual ~Cache() = default;

  // Sizes the cache. A layer's memory is allocated when the layer is first written. Call it once.
  // `backend` must outlive the cache. Errors: kInvalidArgument for sizes below one or too large,
  // kUnsupported for dtypes that the backend's kernels do not serve.
  virtual Status Init(KvBackend& backend, const CacheOptions& options) = 0;

  // Frees all memory and ends the pass. The cache cannot be opened again. A second Close has no
  // effect.
  virtual void Close() = 0;

  // Sets the layout and paddings that the kernels need. Call it at most once, before Init. Without
  // this call the cache takes the backend's preferred_cache_config(). CacheConfig{} selects the
  // plain layout, which Get needs. Errors: kInvalidArgument if the config is already set, after
  // Init, for a padding out of range, or for v_transposed in the tiled layout; kUnsupported unless
  // mask_type is f32 or f16.
  virtual Status SetConfig(const CacheConfig& config) = 0;

  // Ends the pass in progress and starts a pass of `batch`. With kCompute it also claims a cell for
  // every token of the batch. After an error the pass in progress goes on. Errors:
  //   kCacheFull        There are too few free cells, or more captures inside the batch than a
  //                     recurrent cache has states for. The message has the numbers.
  //   kInvalidArgument  The batch is empty or larger than max_batch. Or it names an unknown
  //                     sequence, a negative position, or a position that the sequence already
  //                     holds. Or its parents do not form trees at the ends of their sequences
  //                     (batch.h).
  //   kUnsupported      This kind of cache takes no drafts, or no tokens in this order.
  //   kOutOfMemory      There is no memory for metadata.
  Status StartForward(const Batch& batch, ForwardMode mode) {
    KVCACHE_RETURN_IF_ERROR(PrepareForward(batch, mode));
    BeginForward();
    return Status::Ok();
  }

  // StartForward in two halves, so that several caches begin a pass together or not at all.
  // PrepareForward does everything that can fail. The pass in progress goes on, but the spans
  // inside Visible().histories may move to other memory, even if PrepareForward fails. BeginForward
  // cannot fail. REQUIRES (BeginForward): the previous call was a successful PrepareForward, and
  // the arrays of its batch are still valid.
  virtual Status PrepareForward(const Batch& batch, ForwardMode mode) = 0;
  virtual void BeginForward() = 0;

  // Ends the pass, if there is one. Drafts of the pass are dropped. Other tokens stay in their
  // sequences.
  virtual void EndPass() = 0;

  // Selects the layer for Put, Get and Storage. In a wrapper it may also select the inner cache.
  virtual void SetLayer(int layer) = 0;
  // Returns the cache that holds the layer: in a wrapper, the inner one that SetLayer selects. A pass or a
  // transaction of it alone leaves the others as they are.
  virtual Cache& OfLayer(int /*layer*/) { return *this; }
  // Selects the inner cache of a wrapper for Put, Get, Storage and Visible. Other kinds ignore it.
  virtual void SetLayerType(int /*type*/) {}

  // Makes all queries causal except those in `except`, which also see later tokens of their
  // sequence (image tokens, for example). `except` holds batch indices and replaces those of an
  // earlier call. When a pass starts, all queries are causal. An encoder cache has no causal
  // queries and only checks the indices. Errors that change nothing: kInvalidArgument outside a
  // pass or for an index outside the batch; kUnsupported for any index in a pass of drafts.
  virtual Status SetCausal(std::span<const std::int32_t> except) = 0;
  Status SetCausal(std::initializer_list<std::int32_t> except) {
    return SetCausal(std::span(except.begin(), except.size()));
  }

  // Accepts drafts and ends their pass. `last` holds batch indices, at most one per sequence. Each
  // index names a draft: its sequence keeps that draft and the draft's ancestors, as if they alone
  // had been the batch. All other drafts are dropped. Where possible, the kept drafts move to
  // neighbouring cells. Errors:
  //   kInvalidArgument  There is no pass of drafts, an index is outside the batch, or two indices
  //                     are of one sequence. Nothing changes, and the pass goes on.
  //   kCacheFull        More captures lie inside the paths than a recurrent cache has states for. The
  //                     pass ends, and no draft is kept.
  //   any other code    The backend failed. The pass ends, and no draft is kept.
  Status AcceptDrafts(std::span<const std::int32_t> last) {
    KVCACHE_RETURN_IF_ERROR(PrepareAccept(last));
    FinishAccept();
    return Status::Ok();
  }
  Status AcceptDrafts(std::initializer_list<std::int32_t> last) {
    return AcceptDrafts(std::span(last.begin(), last.size()));
  }
  // AcceptDrafts in two halves, so that several caches accept the same drafts or none.
  // PrepareAccept does everything that can fail. It ends the pass unless it returns
  // kInvalidArgument. FinishAccept cannot fail. If it is not called, no draft is kept.
  // REQUIRES (FinishAccept): the previous call was a successful PrepareAccept.
  virtual Status PrepareAccept(std::span<const std::int32_t> /*last*/) {
    return {StatusCode::kInvalidArgument, "this kind of cache takes no drafts"};
  }
  virtual void FinishAccept() {}

  // Stores the batch's K [k_dim, kv_heads, batch] and V [v_dim, kv_heads, batch], f32, in the
  // layer. Pass ValuesInKeys(k, v_dim) as V to store K alone. The first Put fixes the layer's
  // shape. Errors: kInvalidArgument outside a pass or if batch size, shape or dtype differ;
  // kUnsupported if the cache's dtypes cannot hold the shape; kOutOfMemory; the backend's.
  virtual Status Put(const TensorView& k, const TensorView& v) = 0;

  // Returns the layer's history as dense views with a mask. O(history × batch) once per pass.
  // Errors: kUnsupported unless the layout is plain (see SetConfig); kNotFound for a layer without
  // a Put; kInvalidArgument outside a pass; kOutOfMemory for the mask.
  virtual Result<DenseKv> Get() = 0;

  // Returns the layer's storage, or kNotFound for a layer without a Put.
  virtual Result<LayerKv> Storage() = 0;
  // Returns the tokens that each query of the batch sees, in closed form (visibility.h). Returns an
  // empty Visibility outside a pass. The spans are valid until the pass ends, except those inside
  // `histories`: the next PrepareForward may move them, and then Visible must be called again.
  virtual const Visibility& Visible() const = 0;

  // Replaces `runs` by the cells of the sequence's positions [begin, end), ascending by position. They
  // are valid until the cache changes. SequenceView (sequence_view.h) attends over them, and lists the
  // errors.
  virtual Status FindCells(SequenceId sequence, Position begin, Position end,
                           std::vector<HistoryRun>& runs) const;

  // Drops dst's content and lets dst share src's cells at positions [0, length). No bytes move.
  // Positions missing in src are also missing in dst. src == dst truncates to `length`. Errors that
  // change nothing: kInvalidArgument for unknown sequences or a negative length; kUnsupported for a
  // truncation that Remove does not support; kOutOfMemory. In a wrapper, kOutOfMemory may empty dst
  // and end the pass.
  virtual Status CopyPrefix(SequenceId src, SequenceId dst, Position length) = 0;

  // Returns whether the next token of `sequence` can be evaluated at `position`: whether the cache
  // still holds everything that this token must see. Returns false for an unknown sequence and for
  // a position past the end. A cache does not know which tokens it holds. The caller compares them.
  virtual bool CanResume(SequenceId sequence, Position position) const = 0;

  // Returns the largest length, at most `target`, to which the sequence can be truncated. 0 means
  // to start over. Call Remove(sequence, length, kEndOfSequence) next: it then succeeds, and the
  // next token is evaluated at position `length`. A recurrent cache also chooses the state for that
  // Remove, which must be the next change of the sequence. Errors: kInvalidArgument for an unknown
  // sequence or a cache that is not open.
  virtual Result<Position> PrepareRestore(SequenceId sequence, Position target) = 0;

  // Removes positions [begin, end) of the sequence. Other sequences never change. There are two
  // cases:
  //   - Truncation: the sequence holds no position from `end` on (end = kEndOfSequence, for
  //     example). It cannot fail, except in a recurrent cache, which needs PrepareRestore first
  //     unless begin is 0.
  //   - Middle range: later positions move down by end - begin, and their keys are rotated to
  //     match. Later cells that other sequences share are copied first. Recurrent states still
  //     contain the effect of the removed tokens.
  // Errors that change nothing:
  //   kInvalidArgument  The sequence is unknown or in a transaction, or the range is negative or
  //                     reversed.
  //   kUnsupported      The cache has no shift function for a middle range, or the truncation needs
  //                     PrepareRestore.
  //   kCacheFull        There are too few free cells for the copies.
  //   kOutOfMemory      There is no memory for metadata (in a wrapper, see below).
  // An error of the backend, or kOutOfMemory in a wrapper, ends the pass and leaves the contents of
  // the sequence undefined. Remove all of it then: [0, kEndOfSequence) never fails, except in a
  // transaction.
  virtual Status Remove(SequenceId sequence, Position begin, Position end) = 0;
  // Returns the error that Remove would return without changing anything, or Ok. It does not
  // foresee kOutOfMemory. After Ok, any error of Remove but kOutOfMemory is the backend's.
  virtual Status CheckRemove(SequenceId sequence, Position begin, Position end) const = 0;

  // Moves the used cells to the front, without holes, for kernels that read dense views. O(cells).
  // Ends the pass, even if it fails; nothing else changes then. Errors: kOutOfMemory, and the
  // backend's.
  virtual Status Compact() = 0;

  // ---- Snapshots (snapshot.h). A custom kind need not have them: these return kUnsupported then.

  // Returns the state of the sequence over [begin, end), or null if the range is empty and so is the
  // state. Copies nothing. The sequence does not change. Errors: kInvalidArgument for an unknown
  // sequence or a range that is reversed or ends past the sequence; kUnsupported if the cache no
  // longer has the state after `end` tokens (a window or a recurrent state that went on);
  // kOutOfMemory.
  virtual Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                         Position end);

  // Schedules snapshots at these lengths of the sequence. Each is taken by the pass that reaches it,
  // also inside a batch: the caller need not cut a prefill. The first one begins at `begin`, the
  // length that the sequence has now; each other one begins at the length before it. With
  // kEachFromZero as `begin`, every one begins at position 0. A truncation,
  // or a transaction that takes tokens back, takes back those above the new length; they are scheduled
  // again. If the new length is below `begin`, it cancels all. So does any other change of the
  // sequence except by a pass, also if it fails. Errors that change nothing:
  // kInvalidArgument for an unknown sequence, for lengths that do not ascend from `begin`, for a
  // `begin` below the sequence's length, or if the last schedule was not taken; kOutOfMemory.
  virtual Status ScheduleCaptures(SequenceId sequence, Position begin,
                                  std::span<const Position> lengths);
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::initializer_list<Position> lengths) {
    return ScheduleCaptures(sequence, begin, std::span(lengths.begin(), lengths.size()));
  }
  // Returns the snapshots in the order of the schedule and clears it. Null: the length was not
  // reached, or the range is empty and so is the state.
  virtual Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence);
  // Clears the schedule and what was captured. Does nothing for an unknown sequence.
  virtual void CancelCaptures(SequenceId /*sequence*/) {}

  // Brings the sequence to `target` tokens. With a snapshot, positions from snapshot->begin() on are
  // the snapshot's (those of a window, all). Without one, the sequence goes back by itself. The
  // snapshot stays valid. Ends the pass. Errors that change nothing:
  //   kInvalidArgument  The sequence is unknown, `target` is negative or past the end, the
  //                     snapshot is another cache's, or a layer of it has another shape.
  //   kUnsupported      The target cannot be reached: tokens before the snapshot are missing, the
  //                     window is incomplete there, or there is no recurrent state.
  //   kCacheFull        There are too few free cells, and materialising other snapshots would not
  //                     free enough.
  //   kOutOfMemory      There is no memory for metadata or for materialising.
  // After an error of the backend the sequence is as before or, if its own cells had to be reused,
  // empty.
  Status Restore(SequenceId sequence, const Snapshot* snapshot, Position target) {
    KVCACHE_RETURN_IF_ERROR(BeginRestore(sequence, snapshot, target));
    FinishRestore();
    return Status::Ok();
  }
  // Returns the kInvalidArgument, kUnsupported and kCacheFull errors of Restore, or Ok.
  virtual Status CheckRestore(SequenceId sequence, const Snapshot* snapshot, Position target) const;
  // Restore in two halves, so that several caches restore together or not at all. FinishRestore
  // cannot fail. AbandonRestore takes the first half back, also one that failed, and returns whether
  // the sequence is as before; otherwise remove all of it. One of them must be the next call.
  virtual Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target);
  virtual void FinishRestore() {}
  virtual bool AbandonRestore() { return true; }

  // Returns one snapshot [a, c) for `parent` [a, b) and `child` [b, c), and takes both. Copies
  // nothing. In a wrapper, the whole has nothing of a kind of which a `child` with tokens has
  // nothing. Errors that change nothing: kInvalidArgument if they are not neighbours or not of this
  // cache; kOutOfMemory.
  virtual Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                           std::unique_ptr<Snapshot>& child);
  // Does all of MergeSnapshots that can fail, so that several caches merge together or not at all.
  virtual Status PrepareMerge(Snapshot& parent, Snapshot& child);
  // Splits a snapshot [a, c) at `position` into [a, position) and [position, c), and takes it.
  // Copies nothing. A kind that cannot split returns null and the whole, which then also restores
  // at c only; in a wrapper, the first part has nothing of such a kind and cannot be restored past
  // its beginning. Errors that change nothing:
  // kInvalidArgument unless a < position < c and the snapshot is this cache's; kOutOfMemory.
  virtual Result<SnapshotParts> SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                              Position position);
  // Copies the cells of a lazy snapshot to host memory and gives them back; for tests and for
  // callers that need the cells. Errors: kOutOfMemory, and the backend's; nothing changes.
  virtual Status Materialize(Snapshot& snapshot);

  // Returns a text that names everything that the bytes of this cache's snapshots depend on: kinds,
  // windows, types, transformations, CausalOptions::keys_identity, and the shapes of the layers that
  // have memory (a reserving pass gives all layers theirs). Snapshots move only between caches with
  // equal texts of the first line; shapes are checked layer by layer. A wrapper's first line counts
  // its caches, and the texts of these follow. Errors: kInvalidArgument before Init.
  virtual Result<std::string> Fingerprint() const;
  // Writes a snapshot to a caller's memory, ExportSize bytes, as docs/snapshot-format.md describes:
  // layer by layer, in order of position, independent of where the cells lie and of the processor.
  // Errors: kInvalidArgument for another cache's snapshot or memory of another size; kOutOfMemory;
  // the backend's.
  virtual Result<std::int64_t> ExportSize(const Snapshot& snapshot) const;
  virtual Status Export(const Snapshot& snapshot, std::span<std::byte> bytes);
  // Makes a materialised snapshot of exported bytes, which are copied. Checks all of the bytes'
  // description, but not the keys and values. The caches' sizes may differ. A layer of this cache that
  // was never put takes its shape from the first snapshot that is restored. Errors: kCorrupt for bytes
  // that are not a whole snapshot; kInvalidArgument for one of a cache with another fingerprint, with
  // both texts; kOutOfMemory.
  virtual Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes);

  // Sets the function that is told of host memory taken and given back by snapshots. It may be
  // called from any call, and must not call the cache. Call this after Init; before, it does nothing.
  virtual void SetMaterializeHook(const MaterializeHook& /*hook*/) {}
  // Returns the host memory of all snapshots of this cache.
  virtual std::int64_t SnapshotBytes() const { return 0; }
  // Returns the host memory that the cache keeps for the next snapshots after it freed earlier ones.
  // SnapshotBytes and the hook do not count it. New memory costs more time than the copy into it.
  virtual std::int64_t SpareBytes() const { return 0; }
  // Sets the most bytes of spare memory, and gives what is above back to the system. Call it after
  // Init. Without this call the limit is kDefaultSpareBytes; with 0 nothing is kept. Caches inside a
  // wrapper or a recurrent cache have the limit each. Close frees the memory of snapshots that are
  // gone, and keeps none after it.
  virtual void LimitSpareBytes(std::int64_t /*most*/) {}

  // ---- Transactions (transaction.h), which calls these. A custom kind need not have them.

  // Does everything that can fail when a transaction begins. The pass in progress goes on. Errors
  // that change nothing: as for Transaction::Begin.
  virtual Status PrepareTransaction(std::span<const SequenceLength> members, Position max_tokens);
  // Begins it and ends the pass in progress. REQUIRES: the previous call was a successful
  // PrepareTransaction with these arguments.
  virtual void BeginTransaction(std::span<const SequenceLength> /*members*/,
                                Position /*max_tokens*/) {}
  // Returns the kInvalidArgument and kUnsupported errors of Transaction::Commit, or Ok. `kept` has
  // the length that remains of each member. REQUIRES: the sequences are known.
  virtual Status CheckCommit(std::span<const SequenceLength> kept) const;
  // Does everything of a commit that can fail. After an error only RollBack may follow.
  // REQUIRES: CheckCommit(kept) returned Ok.
  virtual Status PrepareCommit(std::span<const SequenceLength> /*kept*/) { return Status::Ok(); }
  // Ends the transaction of these sequences, and the pass in progress. They cannot fail. FinishCommit
  // REQUIRES: the previous call was a successful PrepareCommit(kept). RollBack does nothing for a
  // sequence that is in no transaction.
  virtual void FinishCommit(std::span<const SequenceLength> /*kept*/) {}
  virtual void RollBack(std::span<const SequenceLength> /*members*/) {}

  // Returns the bytes held now: K and V of all layers, and recurrent states.
  virtual std::int64_t AllocatedBytes() const = 0;
  // Returns the part of AllocatedBytes() that tokens, snapshots and states need, and the host memory
  // of snapshots. Cells that share a tile or a page with a cell in use are not counted.
  virtual std::int64_t UsedBytes() const { return AllocatedBytes() + SnapshotBytes(); }
  // Returns the number of cells that no sequence and no snapshot has. A cache with a window evicts
  // when it needs cells, and has no bound: it returns the largest number. A wrapper returns that of
  // the cache with the fewest.
  virtual std::int64_t FreeCells() const { return std::numeric_limits<std::int64_t>::max(); }

  // Returns the bytes of the system's memory that the cache takes now: those of AllocatedBytes() that
  // were written since they were last given back, SnapshotBytes() and SpareBytes().
  virtual std::int64_t ResidentBytes() const {
    return AllocatedBytes() + SnapshotBytes() + SpareBytes();
  }
  // Returns a bound of what ResidentBytes() would grow by in a pass that adds `length` tokens to each
  // of these sequences, each at most once, takes `captures` captures inside of it, and has `rounds`
  // sequences that are in a transaction, up to the end of its commit. Passes with alternatives
  // (Batch::parents) have no bound.
  virtual std::int64_t GrowthOf(std::span<const SequenceLength> /*more*/, int /*captures*/,
                                int /*rounds*/) const {
    return 0;
  }
  // Gives the memory of free cells and free states back to the system. Ends the pass. Does nothing
  // without CacheOptions::releases_memory. Errors: the backend's.
  virtual Status ReleaseFreeMemory() { return Status::Ok(); }

  // Return the cache with the further calls of its kind (encoder_cache.h, recurrent_cache.h): this
  // cache or, in a wrapper, its first inner cache of that kind. Return null if there is none.
  virtual EncoderCache* Encoder() { return nullptr; }
  virtual RecurrentCache* Recurrent() { return nullptr; }
};

}  // namespace kvcache
