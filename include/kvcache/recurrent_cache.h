// For models that mix attention with recurrent layers: a causal cache for the former, and per
// sequence and recurrent layer a convolution state and a recurrent state, both f32.
//
// A pass reads the states before its tokens and writes those after them, to other memory:
//
//   TensorView state = *cache->RecurrentState(layer, dims);       [dims…, sequences]
//   TensorView next = *cache->NextRecurrentState(layer, dims);
//   … next = f(state, tokens) …
//   cache->UpdateRecurrentState(layer, next);                     no copy; any other view is copied
//
// Once every layer has been updated, the states after the pass are the sequences' states. Until
// then, and if the pass breaks off, they are those before it; those of the last pass are kept
// until the next one, so a round can be taken back. A state is never overwritten while someone
// holds it: forks, checkpoints and the state before a round share memory, and nothing is copied.
//
// Going back. A state cannot be rewound; checkpoints are kept so that a later prompt with the
// same prefix need not start over. PrepareRestore(sequence, target) chooses the newest restore
// point at or before `target`: the state itself, the one before the last pass, a checkpoint. A
// truncation that was not prepared is kUnsupported; so is a batch that does not go on where the
// state is. Removing a middle range shifts the attention part and moves checkpoints along: what
// the state has taken in of the removed tokens stays in it.
//
// A batch gives each of its sequences the same number of tokens, side by side, ascending.
//
// Thread safety and errors: as in cache.h. Design: docs/design/kinds.md.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvcache/causal_cache.h"

namespace kvcache {

struct CheckpointOptions {
  int count = 24;      // per sequence; the oldest goes first
  int spacing = 1664;  // tokens between two of them, at least
  int minimum = 16;    // none at a position below
};

struct RecurrentOptions {
  std::vector<int> layers{};    // the recurrent ones; a checkpoint holds all of them
  int conv_dim = 0;             // steps that a convolution remembers; 0: no convolution state
  int conv_channels = 0;        //
  std::int64_t state_size = 0;  // values of a recurrent state; 0: none
  int max_states = 0;           // that the sequences may have apart; 0: one for each sequence
  CheckpointOptions checkpoints{};
  CausalOptions attention{};
};

class RecurrentCache : public Cache {
 public:
  // Which checkpoints are kept, instead of what the options said; before Init, which checks them.
  // kInvalidArgument after it.
  virtual Status SetCheckpoints(const CheckpointOptions& checkpoints) = 0;

  // The batch's sequences, in its order; empty outside a pass, as are the slots.
  virtual std::span<const SequenceId> Sequences() const = 0;
  virtual std::int32_t TokensPerSequence() const = 0;
  // Where each sequence's next state lies: numbers that tell them apart.
  virtual std::span<const std::int32_t> Slots() const = 0;

  // The states before the pass, [conv_dim, conv_channels, sequences] and [dims…, sequences], at
  // most three dims. Views, unless the sequences' states lie apart: then a copy. Zeros for a new
  // sequence. Errors: kInvalidArgument for a layer that is not recurrent, dims that do not
  // multiply to the state's size (a shape that is not valid), or outside a pass; kOutOfMemory.
  virtual Result<TensorView> ConvState(int layer) = 0;
  virtual Result<TensorView> RecurrentState(int layer, std::span<const std::int64_t> dims) = 0;

  // Where the states after the pass are best written; undefined contents. Valid until the next
  // such call for a layer of another number.
  virtual Result<TensorView> NextConvState(int layer) = 0;
  virtual Result<TensorView> NextRecurrentState(int layer, std::span<const std::int64_t> dims) = 0;

  // Takes the states after the pass, from any float type, shaped as above or as one that
  // multiplies to the same size with the sequences last.
  virtual Status UpdateConvState(int layer, const TensorView& state) = 0;
  virtual Status UpdateRecurrentState(int layer, const TensorView& state) = 0;
};

std::unique_ptr<RecurrentCache> MakeRecurrentCache(RecurrentOptions options);

}  // namespace kvcache
