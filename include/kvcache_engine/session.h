// Evaluates one sequence as a text that grows, is cut, and is forked.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvcache_engine/engine.h"

namespace kvcache {

class Session {
 public:
  // Evaluates tokens in `sequence` of `engine`, which must outlive it. REQUIRES: the sequence is
  // empty, and no other session has it.
  Session(Engine& engine, SequenceId sequence);
  // Removes the sequence from the cache.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Returns the tokens that the cache holds, by position.
  std::span<const std::int32_t> tokens() const { return tokens_; }
  Position position() const { return static_cast<Position>(tokens_.size()); }

  // Is called after each pass with the position of its first token and the number of its tokens:
  // their batch indices are 0 to count - 1, for Engine::Logits. An error ends the call that made
  // the pass.
  using PassHook = std::function<Status(Position first, std::int32_t count)>;

  // Evaluates `tokens` after those already held, in passes of at most the engine's chunk.
  // Errors: kCacheFull, with the numbers, if the context would overflow (nothing is evaluated);
  // kInvalidArgument if the model's encoder has not read a text yet; those of Engine::Forward and
  // of the hook. Passes before the failing one stay. The failing one is removed, and with it tokens
  // before it if the cache cannot return to their end. kCancelled once *interrupt is true, also in
  // the middle of a pass, which is removed then.
  Status Append(std::span<const std::int32_t> tokens, const PassHook& hook = {},
                const std::atomic<bool>* interrupt = nullptr);

  // Runs a model's encoder on a text. The session then holds the decoder's first token. Errors: the
  // session is not empty; those of Engine::Encode, after which it is empty.
  Status Encode(std::span<const std::int32_t> text, const std::atomic<bool>* interrupt = nullptr);

  // Returns the logits [vocabulary_size()] after the last token, valid until the next call.
  // REQUIRES: the last pass of the engine was this session's.
  Result<std::span<const float>> LastLogits();

  // Frees a part of a full context: removes half of the tokens after the first `keep`, and moves
  // the later ones down. Returns the number of removed tokens. If a kernel fails in the middle, the
  // session is empty. Errors: kUnsupported for a model with an encoder; kInvalidArgument if no
  // token can be removed.
  Result<std::int32_t> Shift(std::int32_t keep);

  // Removes all tokens from `length` on; does nothing if there are none. If the cache cannot return
  // to that length exactly (a window, a recurrent state), the tokens after the point to which it
  // can return are evaluated again.
  Status Truncate(Position length);

  // Replaces the session's tokens by the first `length` tokens of `source`, of the same engine.
  // Keys and values are shared and not copied; tokens are evaluated again as in Truncate. Errors:
  // kInvalidArgument if `source` has fewer tokens.
  Status ForkFrom(const Session& source, Position length);

 private:
  Status Pass(std::span<const std::int32_t> tokens, const std::atomic<bool>* interrupt);
  // Removes tokens until at most `length` are left and the next one can be evaluated.
  Status GoBack(Position length);
  // Returns to the first `length` tokens, and evaluates those again that GoBack removed. REQUIRES:
  // length <= position().
  Status RestoreTo(Position length);

  Engine& engine_;
  SequenceId sequence_;
  std::vector<std::int32_t> tokens_;
  std::vector<Position> positions_;    // scratch [max_batch]
  std::vector<SequenceId> sequences_;  // scratch [max_batch]
  std::vector<float> logits_;          // [vocabulary]
  std::int32_t last_pass_tokens_ = 0;
};

}  // namespace kvcache
