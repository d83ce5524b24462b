// One sequence as a growing list of evaluated tokens.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace kvcache {

class Session {
 public:
  // Speaks for `sequence` of the engine, which must outlive it. REQUIRES: the sequence is
  // empty, and no other session speaks for it.
  Session(Engine& engine, SequenceId sequence);
  // Removes the sequence from the cache.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // What the cache holds, by position.
  std::span<const std::int32_t> tokens() const { return tokens_; }
  Position position() const { return static_cast<Position>(tokens_.size()); }

  // Is told the batch indices and the first token's position after each pass, to read logits.
  using PassHook = std::function<Status(Position first, std::int32_t count)>;

  // Evaluates `tokens` after those already held, in passes of at most the engine's chunk.
  // Errors: the context would overflow (nothing is evaluated, the message has the numbers); a model
  // with an encoder has read nothing yet;
  // those of Engine::Forward and of the hook: passes before the failing one stay, the failing
  // one is removed (and tokens before it that the cache cannot go back to the end of). kCancelled
  // once *interrupt is true, also in the middle of a pass, which is removed then.
  Status Append(std::span<const std::int32_t> tokens, const PassHook& hook = {},
                const std::atomic<bool>* interrupt = nullptr);

  // Lets a model's encoder read a text; the session then holds the decoder's first token. Errors:
  // the session is not empty; those of Engine::Encode, after which it is empty.
  Status Encode(std::span<const std::int32_t> text, const std::atomic<bool>* interrupt = nullptr);

  // Logits [vocabulary] after the last token, valid until the next call. REQUIRES: the last
  // pass of the engine was this session's.
  Result<std::span<const float>> LastLogits();

  // Makes room at the context's end: drops half of the tokens after the first `keep`, and
  // moves the later ones down. Returns how many were dropped. If a kernel fails in the middle of
  // it the session is empty. kUnsupported for a model with an encoder.
  Result<std::int32_t> Shift(std::int32_t keep);

  // Drops all from `length` on. Where the cache cannot go back that exactly (a window, a recurrent
  // state), the tokens after the point that it can go back to are evaluated again.
  Status Truncate(Position length);

  // Drops everything and shares `source`'s first `length` tokens: no bytes move, and tokens are
  // evaluated again as in Truncate.
  Status ForkFrom(const Session& source, Position length);

 private:
  Status Pass(std::span<const std::int32_t> tokens, const std::atomic<bool>* interrupt);
  // Drops tokens until at most `length` are left and the next one can be evaluated.
  Status GoBack(Position length);
  // The first `length` tokens, evaluating those again that GoBack lost. REQUIRES: length <=
  // position().
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
