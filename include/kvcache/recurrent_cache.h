// A cache for models that mix attention with recurrent layers: a causal cache for attention and,
// for each sequence and recurrent layer, a convolution state and a recurrent state, both f32.
//
// A pass reads the states before its tokens and writes the states after them to other memory. It
// is divided into segments (recurrence.h), which have the address of each state:
//
//   StateSegments segments = *cache->Segments(layer, StateKind::kRecurrent);
//   … for each segment: *after = f(*before, tokens) …
//   cache->MarkWritten(layer, StateKind::kRecurrent);
//
// If all sequences of the batch have the same number of tokens, it has no drafts, and no scheduled
// capture lies inside it, the states are also views, for kernels that need all sequences in one
// tensor:
//
//   TensorView state = *cache->RecurrentState(layer, dims);       [dims…, sequences]
//   TensorView next = *cache->NextRecurrentState(layer, dims);
//   … next = f(state, tokens) …
//   cache->UpdateRecurrentState(layer, next);                     no copy; any other view is copied
//
// Once every recurrent layer has been updated, the new states become the sequences' states. If the
// pass breaks off earlier, the sequences keep the states from before it. The states from before the
// last complete pass are kept until the next pass, so a pass can be taken back. A state is never
// overwritten while a sequence or checkpoint refers to it: forks, checkpoints and the state before
// a pass share memory, and nothing is copied.
//
// Going back: a state cannot be rewound. Checkpoints are kept so that a later prompt with the same
// prefix need not start over. PrepareRestore(sequence, target) selects the newest restore point at
// or before `target`: the current state, the one before the last pass, or a checkpoint. A
// truncation without PrepareRestore is kUnsupported. So is a batch that does not continue at the
// state. Removing a middle range shifts the attention part and the checkpoints; the state still
// contains the effect of the removed tokens.
//
// The tokens of a sequence are neighbours in the batch, in ascending order of position. A batch of
// drafts may have any order.
//
// Drafts: a pass of drafts changes no state. The model copies each draft's inputs of the recurrent
// layers to DraftInputs, and AcceptDrafts computes the accepted drafts again from them, through
// RecurrentOptions::replay_drafts. Inputs are much smaller than states. docs/design/drafts.md
// compares this with keeping the state after each draft.
//
// Thread safety and errors: as in cache.h. Design: docs/design/kinds.md.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/recurrence.h"

namespace kvcache {

struct CheckpointOptions {
  int count = 24;      // most per sequence; the oldest is replaced first
  int spacing = 1664;  // least distance between two of them, in tokens
  int minimum = 16;    // least position of the last token of a checkpoint
};

enum class StateKind : std::uint8_t { kConvolution, kRecurrent };

// The accepted drafts of a pass, or the tokens that a transaction keeps, in one layer. The columns of
// the segments are those of the pass.
// Segments of a kind that the cache does not have are empty.
struct DraftReplay {
  int layer = 0;
  TensorView inputs;  // [draft_inputs, batch]: what the pass wrote to DraftInputs(layer)
  StateSegments conv{};
  StateSegments recurrent{};
};
// Computes the states that the segments write, with the same bits as a pass of these tokens.
using ReplayDraftsFn = std::function<Status(const DraftReplay& replay)>;

struct RecurrentOptions {
  std::vector<int> layers{};    // numbers of the recurrent layers; a checkpoint holds all of them
  int conv_dim = 0;             // earlier inputs that a convolution needs; 0: no convolution state
  int conv_channels = 0;        // 0 if and only if conv_dim is 0
  std::int64_t state_size = 0;  // values of a recurrent state per layer; 0: none
  int max_states = 0;           // most distinct states of all sequences; 0: one per sequence
  // States that lazy snapshots can keep at any time, beyond those that sequences have, and the most
  // captures inside one pass. A state has memory once it is written.
  int snapshot_states = 8;
  CheckpointOptions checkpoints{};
  CausalOptions attention{};
  // Without this function a batch of drafts is kUnsupported, and so is a transaction of several
  // tokens, unless `layers` is empty.
  ReplayDraftsFn replay_drafts{};
  std::int64_t draft_inputs = 0;  // f32 values per draft and layer that replay_drafts needs
};

class RecurrentCache : public Cache {
 public:
  // Replaces RecurrentOptions::checkpoints. Call it before Init, which checks them. Errors:
  // kInvalidArgument after Init.
  virtual Status SetCheckpoints(const CheckpointOptions& checkpoints) = 0;

  // Returns the batch's sequences in the order of the batch; empty outside a pass.
  virtual std::span<const SequenceId> Sequences() const = 0;
  // Returns the number of tokens of each of them; 0 if the numbers differ, if a capture lies inside
  // the batch, and outside a pass.
  virtual std::int32_t TokensPerSequence() const = 0;
  // Returns the slot index of each sequence's next state; empty outside a pass and in a pass of
  // drafts.
  virtual std::span<const std::int32_t> Slots() const = 0;

  // Returns the segments of the pass with the addresses of their states in the layer. The spans are
  // valid until the next call of Segments for this kind or the end of the pass. Errors:
  // kInvalidArgument outside a pass, for a layer that is not recurrent, or for a kind of state that
  // the cache does not have; kOutOfMemory; the backend's.
  virtual Result<StateSegments> Segments(int layer, StateKind kind) = 0;
  // Says that the pass has written the states of all segments of the layer. Errors:
  // kInvalidArgument as in Segments.
  virtual Status MarkWritten(int layer, StateKind kind) = 0;

  // Returns whether the pass must write DraftInputs: it has drafts, or several tokens of a sequence
  // in a transaction (transaction.h).
  virtual bool NeedsInputs() const = 0;
  // Returns memory for the inputs of all tokens, [draft_inputs, batch], f32, dense. It holds what
  // the pass writes until AcceptDrafts or Commit. Valid until the end of the pass. Errors:
  // kInvalidArgument unless NeedsInputs, or for a layer that is not recurrent; kOutOfMemory; the
  // backend's.
  virtual Result<TensorView> DraftInputs(int layer) = 0;

  // The views of a batch without drafts that has as many tokens of each sequence and no capture
  // inside. All of them are kUnsupported for other batches.

  // Return the states before the pass, [conv_dim, conv_channels, sequences] and
  // [dims…, sequences] with at most three dims. The result is a view if the sequences' states are
  // neighbours in memory, else a view of a copy. A new sequence has zeros. Valid until the next
  // such call or the end of the pass. Errors: kInvalidArgument outside a pass, for a layer that is
  // not recurrent, or for dims whose product is not the state's size; kOutOfMemory.
  virtual Result<TensorView> ConvState(int layer) = 0;
  virtual Result<TensorView> RecurrentState(int layer, std::span<const std::int64_t> dims) = 0;
  Result<TensorView> RecurrentState(int layer, std::initializer_list<std::int64_t> dims) {
    return RecurrentState(layer, std::span(dims.begin(), dims.size()));
  }

  // Return memory for the states after the pass, with undefined contents. An Update call with this
  // view copies nothing. Valid until the next such call for another layer. Errors: as above.
  virtual Result<TensorView> NextConvState(int layer) = 0;
  virtual Result<TensorView> NextRecurrentState(int layer, std::span<const std::int64_t> dims) = 0;
  Result<TensorView> NextRecurrentState(int layer, std::initializer_list<std::int64_t> dims) {
    return NextRecurrentState(layer, std::span(dims.begin(), dims.size()));
  }

  // Store the states after the pass, from f32, f16 or bf16. The last dimension of `state` is the
  // sequences; the product of the others is the state's size. Errors: as above, and the backend's.
  virtual Status UpdateConvState(int layer, const TensorView& state) = 0;
  virtual Status UpdateRecurrentState(int layer, const TensorView& state) = 0;

 protected:
  // Adds itself to the capabilities.
  explicit RecurrentCache(CacheCapabilities capabilities = {})
      : Cache((capabilities.recurrent = this, capabilities)) {}
};

// Returns a cache that is not initialised. Init reports contradictory options.
std::unique_ptr<RecurrentCache> MakeRecurrentCache(RecurrentOptions options);

}  // namespace kvcache
