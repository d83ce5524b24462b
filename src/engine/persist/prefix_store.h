// Keeps the prefixes of an engine's sequences in a store, and brings them back.
//
// prefix_keys.h names what is stored: pieces of a prompt, whole states, or an encoder's outputs.
//
// Objects are written behind (write_behind.h). No error of a store reaches a request.
//
// Thread safety: one thread at a time, the engine's; store() and keys() from any thread.
// Design: docs/design/store.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/persist/prefix_keys.h"
#include "engine/persist/stored_state.h"
#include "kvcache/kv.h"
#include "kvcache/snapshot.h"
#include "kvcache/store.h"
#include "kvcache_engine/session.h"
#include "store/tiers/write_behind.h"

namespace kvcache {

class PrefixStore {
 public:
  static constexpr Position kChunk = PrefixKeys::kChunk;
  static constexpr Position kMinPiece = PrefixKeys::kMinPiece;

  // `engine` must outlive it. Reads all of the model's file if `store` does not know its hash. Errors:
  // kOutOfMemory.
  static Result<std::unique_ptr<PrefixStore>> Make(Engine& engine, std::shared_ptr<Store> store);

  enum class Extent : std::uint8_t {
    kWholeChunks,  // chunks of 512 tokens
    kAll,
  };
  // Returns whether a state after `length` tokens of a prompt is worth its bytes. `restore_points` are
  // the prompt's, ascending.
  bool IsStateWorthStoring(Position length, Position prompt,
                           std::span<const Position> restore_points) const;

  // What the store is known to have of a text.
  struct Known {
    StoredPiece last;             // the last chunk of the text that the store has
    std::vector<ObjectId> ids{};  // others of the text
    int max_wait_ms = 0;          // for room in the queue, except for whole chunks
  };
  // Stores pieces of a sequence that holds `tokens`, if the store does not have them. Does nothing for a model with
  // windows or recurrent states. Asks the store nothing. What is queued becomes known.
  void SavePieces(SequenceId sequence, std::span<const std::int32_t> tokens, Extent extent,
                  Known& known);
  // Stores a state of [0, tokens.size()) of a model with windows or recurrent states; does nothing for
  // another model. `last` is the final state of the last token (hidden_states.h), or empty. As SavePieces.
  void SaveState(const Snapshot& state, std::span<const float> last,
                 std::span<const std::int32_t> tokens, std::uint64_t salt, Known& known);

  // Removes an object that is not what it should be, behind what is queued and before what will be.
  void Discard(const ObjectId& id) {
    (void)writer_.Do([id](Store& store) { return store.Remove(id); });
  }

  // Reads an object. Errors: those of ReadStoredState (stored_state.h).
  Result<StoredState> Read(std::span<const std::byte> payload);

  // ---- Models with an encoder (encoder_outputs.cc): the output for a whole text is one object.

  // Stores the output for `text` that the sequence has. As SavePieces.
  void SaveOutput(SequenceId sequence, std::span<const std::int32_t> text, std::uint64_t salt,
                  Known& known);
  // Returns the output in a payload. Errors: kOutOfMemory; any other if it is not that of a text of
  // `tokens` tokens.
  Result<std::unique_ptr<Snapshot>> ImportOutput(std::span<const std::byte> payload,
                                                 std::size_t tokens);
  // Gives the empty sequence an imported output. Errors: those of CacheSnapshots::Restore; the sequence is empty.
  Status RestoreOutput(SequenceId sequence, const Snapshot& output);

  // Returns when everything is written.
  void Flush() {
    writer_.Flush();
    store_->Flush();
  }
  // Returns why something was not stored since the last call, or an empty text.
  std::string TakeProblem() { return writer_.TakeProblem(); }

  Store& store() { return *store_; }
  const PrefixKeys& keys() const { return *keys_; }
  const StoreHash& fingerprint() const { return keys_->fingerprint(); }
  bool is_divisible() const { return is_divisible_; }
  bool has_encoder() const { return has_encoder_; }
  // Returns which part of the fingerprint differs, if the store has the prompt under another one; else an
  // empty text. From any thread.
  std::string WhyMissed(std::span<const std::int32_t> tokens, std::uint64_t salt);

 private:
  PrefixStore(Engine& engine, std::shared_ptr<Store> store);

  void Announce();
  Status Write(const Snapshot& snapshot, std::span<const float> last, const ObjectId& id,
               int max_wait_ms);
  Status WriteOutput(SequenceId sequence, std::size_t tokens, const ObjectId& id, int max_wait_ms);
  Status Queue(const ObjectId& id, store::StoreBytes bytes, int max_wait_ms);
  Status List(const StoredPiece& state, std::span<const StoreHash> chain);
  Status WritePiece(SequenceId sequence, const StoredPiece& piece, int max_wait_ms);

  Engine& engine_;
  std::shared_ptr<Store> store_;
  std::optional<PrefixKeys> keys_;  // always there after Make
  std::string fingerprint_text_;
  std::vector<std::string> fingerprints_;  // of others, when this was made
  const bool is_divisible_;
  const bool has_encoder_;
  std::vector<KvShape> output_shapes_;  // [layers] of an encoder's output
  bool is_announced_ = false;           // the store has the fingerprint's text
  bool states_are_small_ = true;        // a state's size does not depend on its tokens
  store::WriteBehind writer_;
};

}  // namespace kvcache
