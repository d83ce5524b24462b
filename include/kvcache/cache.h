// The interface of all cache kinds.
//
// A forward pass starts with StartForward(batch), which claims cells and fixes what the queries
// see. Then, for each layer, the model calls SetLayer and Put, and runs attention over Visible()
// (a fused kernel) or over Get() (dense views and a mask, for any kernel):
//
//   cache->StartForward(batch, ForwardMode::kCompute);
//   for (layer) { cache->SetLayer(layer); cache->Put(k, v); … backend.Attention(…); }
//
// The pass lasts until the next successful StartForward, AcceptDrafts, CopyPrefix, Remove,
// Compact or EndPass, or until Close.
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
#include <memory>
#include <span>

#include "kvcache/batch.h"
#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "kvcache/visibility.h"

namespace kvcache {

enum class ForwardMode : std::uint8_t {
  kCompute,  // claims cells
  // Sizes buffers for the worst case: every query sees every cell, whatever its position. No
  // metadata changes. Put allocates its layer and writes nothing.
  kReserve,
};

struct CacheOptions {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int max_sequences = 1;
  // Tokens per sequence. The cells form one pool of max_sequences × capacity. A sequence may grow
  // past its capacity into cells that the others do not use. Drafts take cells from the pool while
  // their pass lasts.
  int capacity = 0;
  int max_batch = 1;  // tokens of the largest batch
};

// The result of Get: views of the cells from the first to the last that any query of the batch
// sees, and a mask. Column c is cell `first_cell` + c, so position p of a HistoryRun `run` is
// column run.cell + (p - run.position) - first_cell. The views are valid as long as the pass.
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

  // Frees everything and ends the pass. Further calls of Close have no effect.
  virtual void Close() = 0;

  // Sets the layout and paddings that the kernels need. Call it at most once, before Init.
  // Defaults to the backend's preferred_cache_config(). CacheConfig{} selects the plain layout,
  // which Get needs. Errors: kInvalidArgument if already set, after Init, or for bad paddings;
  // kUnsupported for a mask type without masks.
  virtual Status SetConfig(const CacheConfig& config) = 0;

  // Starts a pass and, with kCompute, claims a cell for every token of the batch. Errors:
  //   kCacheFull        too few free cells; the message has the numbers
  //   kInvalidArgument  the batch is empty or larger than max_batch, names an unknown sequence, has
  //                     a negative position or one that the sequence already holds, or its parents
  //                     are not trees
  //   kUnsupported      the kind does not serve this layout of a batch, or drafts
  //   kOutOfMemory      no memory for metadata
  Status StartForward(const Batch& batch, ForwardMode mode) {
    KVCACHE_RETURN_IF_ERROR(PrepareForward(batch, mode));
    BeginForward();
    return Status::Ok();
  }

  // StartForward in two halves, so that several caches begin a pass together or not at all.
  // PrepareForward does everything that can fail and changes nothing that a caller can observe.
  // BeginForward cannot fail. REQUIRES (BeginForward): the previous call was a successful
  // PrepareForward, and the arrays of its batch are still valid.
  virtual Status PrepareForward(const Batch& batch, ForwardMode mode) = 0;
  virtual void BeginForward() = 0;

  // Ends the pass, if there is one, and drops its drafts. Tokens of other passes stay.
  virtual void EndPass() = 0;

  // Selects the layer for Put, Get and Storage. In a wrapper it may also select the inner cache.
  virtual void SetLayer(int layer) = 0;
  // Selects the inner cache of a wrapper for Put, Get, Storage and Visible. Other kinds ignore it.
  virtual void SetLayerType(int /*type*/) {}

  // For the rest of the pass, lets the queries at these batch indices (image tokens, for example)
  // also see later tokens of their sequence. All other queries are causal. Errors, nothing changed:
  // kInvalidArgument outside a pass or for an index outside the batch; kUnsupported for drafts.
  virtual Status SetCausal(std::span<const std::int32_t> except) = 0;
  Status SetCausal(std::initializer_list<std::int32_t> except) {
    return SetCausal(std::span(except.begin(), except.size()));
  }

  // Accepts drafts and ends their pass. `last` holds batch indices, at most one per sequence. Each
  // of these sequences keeps the named token and its ancestors, as if they alone had been the
  // batch. Their cells become neighbours. All other drafts are dropped. Errors:
  // kInvalidArgument, nothing changed, outside a pass of drafts, for an index outside the batch,
  // or for two of one sequence. Any other code is the backend's; then no draft is kept.
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
  // kInvalidArgument. FinishAccept cannot fail; without it no draft is kept.
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
  // Returns the tokens that each query of the batch sees, in closed form; empty outside a pass. The
  // outer spans are valid as long as the pass. The spans inside `histories` are valid until the
  // next PrepareForward, which may move them: read them through this call again.
  virtual const Visibility& Visible() const = 0;

  // Drops dst's content and lets dst share src's cells at positions [0, length). No bytes move.
  // Positions missing in src are also missing in dst. src == dst truncates to `length`. Errors:
  // kInvalidArgument for unknown sequences or a negative length; kOutOfMemory, after which dst of a
  // wrapper may be empty.
  virtual Status CopyPrefix(SequenceId src, SequenceId dst, Position length) = 0;

  // Returns whether the next token of `sequence` can be evaluated at `position`, that is, whether
  // everything it must see is still stored. False for an unknown sequence. The caller knows whether
  // the contents match.
  virtual bool CanResume(SequenceId sequence, Position position) const = 0;

  // Returns the largest length, at most `target`, to which the sequence can be truncated:
  // Remove(sequence, length, kEndOfSequence) then succeeds and the next token is evaluated at
  // `length`. 0 means to start over. Recurrent states are prepared for that Remove, which must be
  // the next change of the sequence. Errors: kInvalidArgument for an unknown sequence or a cache
  // that is not open.
  virtual Result<Position> PrepareRestore(SequenceId sequence, Position target) = 0;

  // Removes positions [begin, end). Later positions move down by end - begin and their keys are
  // rotated to match. If none is later (end = kEndOfSequence, for example), this truncates and
  // never fails, except that recurrent states need PrepareRestore first. Errors that change
  // nothing: kInvalidArgument; kUnsupported for a middle range without a shift function or for an
  // unprepared truncation; kCacheFull, because later cells that other sequences see are copied
  // first; kOutOfMemory. After an error of the backend the contents of the sequence are undefined:
  // remove all of it, [0, kEndOfSequence), which never fails. Other sequences never change.
  virtual Status Remove(SequenceId sequence, Position begin, Position end) = 0;
  // Returns the error that Remove would return without changing anything, or Ok. It does not
  // foresee kOutOfMemory.
  virtual Status CheckRemove(SequenceId sequence, Position begin, Position end) const = 0;

  // Moves the used cells to the front, without holes, for kernels that read dense views. Ends the
  // pass, also on an error; nothing else changes. O(cells). Errors: kOutOfMemory, and the
  // backend's.
  virtual Status Compact() = 0;

  // Returns the bytes held now: K and V of all layers, and recurrent states.
  virtual std::int64_t AllocatedBytes() const = 0;

  // Return the encoder or recurrent part, or null if there is none. A wrapper returns that of its
  // first inner cache that has one.
  virtual EncoderCache* Encoder() { return nullptr; }
  virtual RecurrentCache* Recurrent() { return nullptr; }
};

}  // namespace kvcache
