// The interface of all cache kinds: 19 calls, and further ones that some kinds have (snapshots(),
// transactions(), memory(), Encoder(), Recurrent(), Wrapper()).
//
// A forward pass starts with StartForward(batch), which claims cells and fixes what the queries
// see. Then, for each layer, the model calls SetLayer and Put, and runs attention over Visible()
// (a fused kernel) or over Get() (dense views and a mask, for any kernel):
//
//   cache->StartForward(batch, ForwardMode::kCompute);
//   for (layer) { cache->SetLayer(layer); cache->Put(k, v); … backend.Attention(…); }
//
// A pass lasts until one of these calls:
//   - a StartForward, AcceptDrafts, CopyPrefix, Remove, EvictWindow or Restore that succeeds, or a
//     transaction that begins or ends. If one of them fails, the pass continues, except where the call
//     says that an error ends it.
//   - Compact, even if it fails
//   - EndPass or Close
//
// Kinds: causal_cache.h, encoder_cache.h, recurrent_cache.h, and wrapper_cache.h for models whose
// layers need several. To add a kind, implement this class and, if the kind has them, the classes of
// snapshot.h, transaction.h and cache_memory.h. tests/support is a conformance kit that checks a kind;
// examples/custom_kind shows both.
//
// Thread safety: not thread-safe. Different caches may be used from different threads.
// Errors: after an error the cache is as it was before the call, unless the call says otherwise.
// Source: Ollama's kvcache package (cache.go, causal.go) has this interface in Go.
// docs/from-ollama.md lists the differences.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/cache_memory.h"
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
  // The layout and paddings that the kernels need; without a value, the backend's
  // preferred_cache_config(). CacheConfig{} selects the plain layout, which Get needs.
  std::optional<CacheConfig> config{};
};

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
class WrapperCache;

// The further calls of a kind. Null: the kind does not have them.
struct CacheCapabilities {
  CacheSnapshots* snapshots = nullptr;        // snapshot.h
  CacheTransactions* transactions = nullptr;  // transaction.h
  CacheMemory* memory = nullptr;              // cache_memory.h
  EncoderCache* encoder = nullptr;            // encoder_cache.h
  RecurrentCache* recurrent = nullptr;        // recurrent_cache.h
  WrapperCache* wrapper = nullptr;            // wrapper_cache.h
};

class Cache {
 public:
  virtual ~Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // ---- Life

  // Sizes the cache. A layer's memory is allocated when the layer is first written. Call it once.
  // `backend` must outlive the cache. Errors: kInvalidArgument for sizes below one or too large, for a
  // padding out of range, for v_transposed in the tiled layout, or after Init; kUnsupported for dtypes
  // that the backend's kernels do not serve, and unless mask_type is f32 or f16.
  virtual Status Init(KvBackend& backend, const CacheOptions& options) = 0;

  // Frees all memory and ends the pass. The cache cannot be opened again. A second Close has no
  // effect.
  virtual void Close() = 0;

  // ---- Passes

  // Ends the pass in progress and starts a pass of `batch`. With kCompute it also claims a cell for
  // every token of the batch. After an error the pass in progress continues, but the spans inside
  // Visible().histories may have moved: call Visible again. Errors:
  //   kCacheFull        There are too few free cells, or more captures inside the batch than a
  //                     recurrent cache has states for. The message has the numbers.
  //   kInvalidArgument  The batch is empty or larger than max_batch. Or it names an unknown
  //                     sequence, a negative position, or a position that the sequence already
  //                     holds. Or its parents do not form trees at the ends of their sequences
  //                     (batch.h).
  //   kUnsupported      This kind of cache takes no drafts, or no tokens in this order.
  //   kOutOfMemory      There is no memory for metadata.
  virtual Status StartForward(const Batch& batch, ForwardMode mode) = 0;

  // Ends the pass, if there is one. Drafts of the pass are dropped. Other tokens stay in their
  // sequences.
  virtual void EndPass() = 0;

  // Selects the layer for Put, Get and Storage. In a wrapper it may also select the inner cache.
  virtual void SetLayer(int layer) = 0;

  // Makes all queries causal except those in `except`, which also see later tokens of their
  // sequence (image tokens, for example). `except` holds batch indices and replaces those of an
  // earlier call. When a pass starts, all queries are causal. An encoder cache has no causal
  // queries and only checks the indices. Errors that change nothing: kInvalidArgument outside a
  // pass or for an index outside the batch; kUnsupported for any index in a pass of drafts.
  virtual Status SetCausal(std::span<const std::int32_t> except) = 0;
  Status SetCausal(std::initializer_list<std::int32_t> except) {
    return SetCausal(std::span(except.begin(), except.size()));
  }

  // Stores the batch's K [k_dim, kv_heads, batch] and V [v_dim, kv_heads, batch], f32, in the
  // layer. Pass ValuesInKeys(k, v_dim) as V to store K alone. The first Put fixes the layer's
  // shape. Errors: kInvalidArgument outside a pass or if batch size, shape or dtype differ;
  // kUnsupported if the cache's dtypes cannot hold the shape; kOutOfMemory; the backend's.
  virtual Status Put(const TensorView& k, const TensorView& v) = 0;

  // Returns the layer's history as dense views with a mask. O(history × batch) once per pass.
  // Errors: kUnsupported unless the layout is plain (CacheOptions::config); kNotFound for a layer
  // without a Put; kInvalidArgument outside a pass; kOutOfMemory for the mask.
  virtual Result<DenseKv> Get() = 0;

  // Returns the layer's storage, or kNotFound for a layer without a Put.
  virtual Result<LayerKv> Storage() = 0;

  // Returns the tokens that each query of the batch sees, in closed form (visibility.h). Returns an
  // empty Visibility outside a pass. The spans are valid until the pass ends, except those inside
  // `histories`: the next StartForward may move them even if it fails, and then Visible must be called
  // again.
  virtual const Visibility& Visible() const = 0;

  // Accepts drafts and ends their pass. `last` holds batch indices, at most one per sequence. Each
  // index names a draft: its sequence keeps that draft and the draft's ancestors, as if they alone
  // had been the batch. All other drafts are dropped. Where possible, the kept drafts move to
  // neighbouring cells. Errors:
  //   kInvalidArgument  There is no pass of drafts, an index is outside the batch, or two indices
  //                     are of one sequence. Nothing changes, and the pass continues.
  //   kCacheFull        More captures lie inside the paths than a recurrent cache has states for. The
  //                     pass ends, and no draft is kept.
  //   any other code    The backend failed. The pass ends, and no draft is kept.
  virtual Status AcceptDrafts(std::span<const std::int32_t> /*last*/) {
    return {StatusCode::kInvalidArgument, "this kind of cache takes no drafts"};
  }
  Status AcceptDrafts(std::initializer_list<std::int32_t> last) {
    return AcceptDrafts(std::span(last.begin(), last.size()));
  }

  // ---- Sequences

  // Returns the length of the sequence in tokens: one past its last position, 0 for an empty or
  // unknown sequence or a cache that is not open. Tokens that a window evicted count, drafts do not.
  // The length of a wrapper is that of its longest cache.
  virtual Position Length(SequenceId sequence) const = 0;

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

  // Evicts the tokens of the sequence that a window would evict in a pass that continues the sequence
  // at its end. Passes do this by themselves; a sequence holds more after AcceptDrafts or a commit, and
  // its cells are then missing for copies of Remove. Ends the pass. Does nothing else in a cache
  // without a window. Errors that change nothing: kInvalidArgument if the sequence is unknown or in a
  // transaction, or the cache is not open.
  virtual Status EvictWindow(SequenceId sequence) = 0;

  // ---- Further calls, or null if this kind does not have them. In a wrapper, the first three are null
  // unless all inner caches have them. Encoder and Recurrent return this cache or, in a wrapper, its
  // first inner cache of that kind.

  CacheSnapshots* snapshots() { return capabilities_.snapshots; }
  const CacheSnapshots* snapshots() const { return capabilities_.snapshots; }
  CacheTransactions* transactions() { return capabilities_.transactions; }
  CacheMemory* memory() { return capabilities_.memory; }
  const CacheMemory* memory() const { return capabilities_.memory; }
  EncoderCache* Encoder() { return capabilities_.encoder; }
  RecurrentCache* Recurrent() { return capabilities_.recurrent; }
  WrapperCache* Wrapper() { return capabilities_.wrapper; }

 protected:
  // The capabilities must live as long as the cache: they are its parts, or those of an inner cache.
  explicit Cache(const CacheCapabilities& capabilities = {}) : capabilities_(capabilities) {}

 private:
  CacheCapabilities capabilities_;
};

}  // namespace kvcache
