// A sequence for benchmarks that can grow without evaluating tokens.
//
// The content of keys and values does not change the speed of reading them. Therefore a deep
// history need not be evaluated: Repeat copies the cells of evaluated tokens to new cells.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/engine_impl.h"

namespace kvcache::bench {

class GrowingSequence {
 public:
  // Uses sequence 0 of the engine, which must be empty. `backend` is the engine's. Both must
  // outlive this object.
  GrowingSequence(Engine& engine, Backend& backend) : engine_(engine), backend_(backend) {}

  Position length() const { return length_; }

  // Is called after each pass with the first token's position and the batch's size, to read logits.
  using PassHook = std::function<Status(Position first, std::int32_t count)>;

  // Evaluates `tokens` after those held, in passes of at most the engine's chunk.
  Status Append(std::span<const std::int32_t> tokens, const PassHook& hook = {});

  // Returns the logits [vocabulary] after the last token. REQUIRES: the last call was Append.
  Status LastLogits(std::span<float> logits);

  // Extends the sequence to `length` tokens by repeated copies of its tokens, in every layer.
  // Errors: kUnsupported unless every layer retains its whole history; kInvalidArgument if the
  // sequence is empty.
  Status Repeat(Position length);

  // Removes all tokens from `length` on.
  Status Truncate(Position length);

 private:
  Status Claim(Position begin, Position end);
  std::int32_t CellOf(Position position, std::int32_t* left) const;
  std::vector<CellMove> Moves(Position held) const;

  Engine& engine_;
  Backend& backend_;
  Position length_ = 0;
  std::int32_t last_pass_ = 0;  // number of tokens
  std::vector<Position> positions_;
  std::vector<SequenceId> sequences_;
};

}  // namespace kvcache::bench
