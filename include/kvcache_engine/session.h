// Evaluates the text of one sequence of an engine: appends tokens, removes them, and forks.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/snapshot.h"
#include "kvcache/types.h"
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

  // Returns the tokens that the cache holds, by position; those of pictures are ids (picture.h).
  std::span<const std::int32_t> tokens() const { return tokens_; }
  Position position() const { return static_cast<Position>(tokens_.size()); }
  SequenceId sequence() const { return sequence_; }

  // Evaluates the session's tokens with these adapters of the engine. Errors: kInvalidArgument if the session is not
  // empty; those of Engine::NormalAdapters.
  Status UseAdapters(AdapterUses uses);

  // A function that Append calls after each of its passes. `first` is the position of the first
  // token of the pass, `count` the number of its tokens. For Engine::Logits, their batch indices
  // are 0 to count - 1. If the function returns an error, Append fails with it.
  using PassHook = std::function<Status(Position first, std::int32_t count)>;

  // Evaluates `tokens` after those already held, in passes of at most max_batch() tokens of the
  // engine. If a pass fails, its tokens are removed, and the tokens of earlier passes stay. If the
  // cache cannot go back to their end, the last of those are removed, too. Errors are those of
  // Engine::Forward and of the hook, and:
  //   kCacheFull        The context would overflow. Nothing is evaluated. The message has the
  //                     numbers.
  //   kInvalidArgument  The model has an encoder, and it has not read a text yet.
  //   kCancelled        *interrupt is true. A pass that is stopped in the middle counts as failed.
  Status Append(std::span<const std::int32_t> tokens, const PassHook& hook = {},
                const std::atomic<bool>* interrupt = nullptr);

  // Evaluates a picture's cells behind what is held: cells that see each other in one pass, others like tokens. The
  // tower runs if its rows are not kept. Errors: those of Append; kInvalidArgument for a picture that is
  // larger than a pass and cannot be divided; the tower's.
  Status AppendPicture(const PicturePtr& picture, const PassHook& hook = {},
                       const std::atomic<bool>* interrupt = nullptr);

  // Evaluates `current` and the drafts that may follow it in one pass. `verify` gets their logits
  // [1 + drafts, vocabulary] and returns how many drafts stay: `current` stays in any case. The others are as if they
  // had never been there. Errors: those of Transaction::Begin and Commit, of Engine::Forward and of `verify`; the
  // session is then as before. Leaves no LastLogits. REQUIRES: at most max_batch() tokens, which the context holds.
  using Verifier = std::function<Result<Position>(std::span<const float> logits)>;
  Status Verify(std::int32_t current, std::span<const std::int32_t> drafts, const Verifier& verify);

  // Runs the model's encoder on `text`. The session then holds the decoder's first token. Errors:
  // kInvalidArgument if the session is not empty; those of Engine::Encode, after which the session
  // is empty.
  Status Encode(std::span<const std::int32_t> text, const std::atomic<bool>* interrupt = nullptr);

  // Returns the logits [vocabulary_size()] after the last token, valid until the next call.
  // REQUIRES: the last pass of the engine was this session's.
  Result<std::span<const float>> LastLogits();

  // Frees a part of a full context: removes half of the tokens after the first `keep`, and moves
  // the later ones down. Returns the number of removed tokens. Errors: kUnsupported for a model
  // with an encoder; kInvalidArgument if no token can be removed; those of Cache::Remove. After an
  // error of a kernel the session is empty.
  Result<std::int32_t> Shift(std::int32_t keep);

  // Removes all tokens from position `length` on, and a picture that would be cut. Does nothing if there are none. A cache with a
  // window or with recurrent states cannot always return to exactly that length. It then returns to
  // an earlier point, and the session evaluates the tokens in between again. Errors: those of
  // Append.
  Status Truncate(Position length);

  // Replaces the session's tokens by the first `length` tokens of `source`, a session of the same
  // engine, and takes its adapters. Keys and values are shared, not copied. As in Truncate, some tokens may be evaluated
  // again. Errors: kInvalidArgument if `source` has fewer tokens or another engine, which changes nothing; those of Append,
  // after which the session holds the tokens that it has evaluated.
  Status ForkFrom(const Session& source, Position length);

  // Replaces the session's tokens by `tokens`, the first ones of a snapshot that begins at 0, of a text with the
  // session's adapters. Nothing is
  // evaluated. `last` is what LastState() returned at the snapshot's end: with it, a draft head drafts as
  // behind the text itself. It is ignored if `tokens` are fewer than those of the snapshot. Errors:
  // kInvalidArgument for no snapshot; kUnsupported for tokens with pictures, ids below 0, which changes nothing; those of CacheSnapshots::Restore, after which the session is as before, or
  // empty.
  Status Restore(const Snapshot* snapshot, std::span<const std::int32_t> tokens,
                 std::span<const float> last = {});
  // Returns the model's final state [hidden_size] of the last token, which a draft head reads with the next
  // one. It is empty if it is not known, and without a draft head. Valid until the next call.
  std::span<const float> LastState() const;

  // Removes tokens until at most `length` are left and the next one can be evaluated. Evaluates
  // nothing. Errors: those of Cache::PrepareRestore.
  Status GoBackTo(Position length) { return GoBack(length); }

 private:
  Status Pass(std::span<const std::int32_t> tokens, std::span<const InputRows> rows,
              const std::atomic<bool>* interrupt);
  Status CheckFits(std::size_t tokens) const;
  // Returns EngineBatch::axes of the next `count` tokens. Throws std::bad_alloc.
  std::span<const Position> NextAxes(std::size_t count);
  // Pass, then the hook. If either fails, the pass's tokens are removed.
  Status PassAndHook(std::span<const std::int32_t> tokens, std::span<const InputRows> rows,
                     const PassHook& hook, const std::atomic<bool>* interrupt);
  // Removes all tokens.
  Status Clear();
  // Removes tokens until at most `length` are left and the next one can be evaluated.
  Status GoBack(Position length);
  // Returns to the first `length` tokens, and evaluates those again that GoBack removed. REQUIRES:
  // length <= position().
  Status RestoreTo(Position length);

  Engine& engine_;
  SequenceId sequence_;
  std::vector<std::int32_t> tokens_;
  std::vector<PromptPicture> pictures_;     // of them
  std::vector<Position> positions_;         // scratch [max_batch]
  std::vector<Position> axes_;              // scratch [max_batch, 3]; empty without pictures
  std::vector<SequenceId> sequences_;       // scratch [max_batch]
  std::vector<float> logits_;               // [vocabulary]
  std::vector<float> all_logits_;           // scratch of Verify: [tokens, vocabulary]
  std::vector<std::int32_t> rows_;          // scratch of Verify: batch indices
  std::vector<std::int32_t> round_tokens_;  // scratch of Verify: the current token and the drafts
  std::int32_t last_pass_tokens_ = 0;
};

}  // namespace kvcache
