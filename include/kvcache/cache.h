// The one interface of all cache kinds.
//
// A forward pass is: StartForward(batch), which claims cells and fixes what the pass will
// see; then for each layer SetLayer, Put, and attention over Visible() (fused kernels) or
// Get() (views and a mask, for any kernel).
//
//   cache->StartForward(batch, ForwardMode::kCompute);
//   for (layer) { cache->SetLayer(layer); cache->Put(k, v); … backend.Attention(…); }
//
// The pass lasts until the next successful StartForward, AcceptDrafts, CopyPrefix, Remove or
// Compact, or Close.
//
// Kinds: causal_cache.h, encoder_cache.h, recurrent_cache.h, and wrapper_cache.h for models whose
// layers need several. A kind of one's own implements this class; tests/support has the kit that
// checks one.
//
// Thread safety: a cache belongs to one thread at a time.
// Errors: after any error the cache is as it was before the call, except where a call says
// otherwise.
// Source: Ollama's kvcache package (cache.go, causal.go) has this interface in Go; the
// differences are listed in docs/design/cells.md and kinds.md.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

// An image or sound in the batch; its tokens start at `index`.
struct MultimodalItem {
  std::int32_t index = 0;
  std::uint64_t hash = 0;
};

// The tokens of one forward pass, in any order, for any sequences.
struct Batch {
  std::span<const Position> positions;    // [batch]
  std::span<const SequenceId> sequences;  // [batch]
  std::span<const MultimodalItem> items{};
  // [batch], or empty. Where it is given, the tokens are drafts: token i follows token parents[i]
  // of the batch, one of its sequence that comes before it; or, with -1, what its sequence keeps.
  // Its position is the next one. Tokens that follow the same one are alternatives: a token sees
  // the path that leads to it, and of the other drafts nothing. When the pass ends the sequences
  // hold none of them but what AcceptDrafts keeps; that goes for a sequence without alternatives,
  // too. There are no items. (A window lets go of what it would for one token at the sequence's
  // end.)
  std::span<const std::int32_t> parents{};
  std::size_t size() const { return positions.size(); }
};

enum class ForwardMode : std::uint8_t {
  kCompute,  // claims cells
  // Sizes for the worst case: every query sees every cell, whatever its position. No metadata
  // changes; Put allocates its layer and writes nothing.
  kReserve,
};

struct CacheOptions {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int max_sequences = 1;
  // Tokens per sequence. Cells are one pool of max_sequences × capacity: a sequence may take what
  // others leave, and drafts take theirs from it while their pass lasts.
  int capacity = 0;
  int max_batch = 1;  // tokens of the largest batch
};

// What Get returns: the cells from the first to the last that any query of the batch sees,
// and which of them each query sees. Views into the cache, valid as long as the pass.
struct DenseKv {
  TensorView k;     // [k_dim, kv_heads, history]
  TensorView v;     // [v_dim, kv_heads, history], or [history, v_dim, kv_heads] if transposed;
                    // where V is in K, the first values of each key in any case
  TensorView mask;  // [history, batch padded]: 0 where visible, -inf elsewhere; host memory
};

// Re-rotates the keys of `cells` in one layer by `offset` positions.
using ShiftKeysFn = std::function<Status(int layer, const LayerKv& storage,
                                         std::span<const CellRun> cells, Position offset)>;

class EncoderCache;
class RecurrentCache;

class Cache {
 public:
  virtual ~Cache() = default;

  // Sizes the cache. Memory for a layer is allocated when it is first written. Called once.
  // Errors: kInvalidArgument for sizes below one or too large, kUnsupported for dtypes that
  // the backend's kernels do not serve. `backend` must outlive the cache.
  virtual Status Init(KvBackend& backend, const CacheOptions& options) = 0;

  // Frees everything, also in the middle of a pass; safe twice.
  virtual void Close() = 0;

  // Says what kernels want, before Init; setting it twice is an error. Without it the
  // backend's own wish holds; CacheConfig{} asks for the plain form.
  virtual Status SetConfig(const CacheConfig& config) = 0;

  // Claims a cell for every token of the batch. Errors: kCacheFull with the numbers;
  // kInvalidArgument for a batch that is empty, over max_batch, of an unknown sequence, or
  // with a position that is negative or that the sequence already holds, or for parents that are
  // no trees; kUnsupported for a batch whose layout the kind does not serve, drafts among them.
  Status StartForward(const Batch& batch, ForwardMode mode) {
    KVCACHE_RETURN_IF_ERROR(PrepareForward(batch, mode));
    BeginForward();
    return Status::Ok();
  }

  // StartForward in two halves, so that several caches begin together or not at all. The first
  // does all that can fail and changes nothing that can be seen; the second cannot fail.
  virtual Status PrepareForward(const Batch& batch, ForwardMode mode) = 0;
  // REQUIRES: the call before was a PrepareForward that succeeded; its batch is still there.
  virtual void BeginForward() = 0;

  // Which layer Put, Get and Visible speak of.
  virtual void SetLayer(int layer) = 0;
  // In a wrapper: which inner cache Put, Get and Visible speak of. Elsewhere it says nothing.
  virtual void SetLayerType(int /*type*/) {}

  // For the rest of the pass, the queries at these batch indices see later tokens of their
  // sequence too (image tokens, say) and all others do not. Errors, nothing changed:
  // kInvalidArgument outside a pass or for an index outside of the batch; kUnsupported for drafts.
  virtual Status SetCausal(std::span<const std::int32_t> except) = 0;

  // Ends a pass of drafts. Of each of these tokens (indices of the batch, at most one of a
  // sequence) its sequence keeps the path that leads there, itself included, as if that alone had
  // been the batch; the cells of a path move together. All other drafts are let go of. Errors:
  // kInvalidArgument, nothing changed, outside a pass of drafts, for an index outside of the batch,
  // for two of one sequence; the backend's, with any other code, after which no draft is kept.
  Status AcceptDrafts(std::span<const std::int32_t> last) {
    KVCACHE_RETURN_IF_ERROR(PrepareAccept(last));
    FinishAccept();
    return Status::Ok();
  }
  // AcceptDrafts in two halves, so that several caches keep the same or nothing: the first does all
  // that can fail, and ends the pass unless it refuses; the second cannot fail. Without the second
  // no draft is kept.
  virtual Status PrepareAccept(std::span<const std::int32_t> /*last*/) {
    return {StatusCode::kInvalidArgument, "this kind of cache takes no drafts"};
  }
  // REQUIRES: the call before was a PrepareAccept that succeeded.
  virtual void FinishAccept() {}

  // Stores the batch's K [k_dim, kv_heads, batch] and V [v_dim, kv_heads, batch], f32, for
  // the layer; or K alone, with ValuesInKeys(k, v_dim) as V. The first Put fixes the layer's
  // shape. Errors: batch size or shape differ.
  virtual Status Put(const TensorView& k, const TensorView& v) = 0;

  // The layer's history as views with a mask. Only in the plain layout: kUnsupported else.
  virtual Result<DenseKv> Get() = 0;

  // The layer's storage; kNotFound for a layer that was never put.
  virtual Result<LayerKv> Storage() = 0;
  // What the batch sees, in closed form; empty outside a pass. Spans are valid as long as the
  // pass, those inside of others until the next PrepareForward: it may move them.
  virtual const Visibility& Visible() const = 0;

  // dst's content is dropped; dst then shares src's cells at positions [0, length). No bytes
  // move; what src lacks of them dst lacks too. src == dst truncates to length. Errors:
  // kInvalidArgument for unknown sequences or a negative length, kOutOfMemory; in a wrapper dst
  // may then be empty.
  virtual Status CopyPrefix(SequenceId src, SequenceId dst, Position length) = 0;

  // Can the next token of `sequence` be evaluated at `position`, with all that it must see
  // still here? That the contents match is the caller's to know.
  virtual bool CanResume(SequenceId sequence, Position position) const = 0;

  // The most tokens, at most `target`, that the sequence can go back to: Remove(sequence, that,
  // kEndOfSequence) then succeeds, and the next token is evaluated there. 0: start over.
  // Recurrent states are prepared for that Remove, which must be the sequence's next change.
  virtual Position PrepareRestore(SequenceId sequence, Position target) = 0;

  // Drops positions [begin, end); later ones move down by end - begin and their keys are
  // re-rotated. With none later (end = kEndOfSequence, say) it truncates, which never fails.
  // Errors that change nothing: kInvalidArgument; kUnsupported for a middle range without a
  // shift function; kCacheFull, as later cells that other sequences see are copied first.
  // After any other error the sequence's contents are undefined: the caller
  // removes it whole, [0, kEndOfSequence), which never fails. Other sequences are as they were.
  virtual Status Remove(SequenceId sequence, Position begin, Position end) = 0;
  // The error that Remove would return and that changes nothing, or Ok.
  virtual Status CheckRemove(SequenceId sequence, Position begin, Position end) const = 0;

  // Moves what is kept to the first cells, without a hole: for kernels that want dense views.
  // Nothing else that can be seen changes, but that the pass ends, also on an error. Errors:
  // kOutOfMemory, and the backend's.
  virtual Status Compact() = 0;

  // Bytes held now: K and V over all layers, and states.
  virtual std::int64_t AllocatedBytes() const = 0;

  // The part with calls of its own, or null where the kind has none; a wrapper looks inside.
  virtual EncoderCache* Encoder() { return nullptr; }
  virtual RecurrentCache* Recurrent() { return nullptr; }
};

}  // namespace kvcache
