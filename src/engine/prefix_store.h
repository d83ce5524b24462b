// Keeps the prefixes of an engine's sequences in a store, and brings them back.
//
// A model whose layers keep every token stores chunks, so that prompts share what they have in common:
//
//   tokens   0 ........ 512 ........ 1024 .... 1152 . 1184
//   chunks   [ 512     )[ 512      )[ 128   )[ 32 )          and 7 tokens that are not stored
//
// The key of a chunk is a hash of the key before it and its tokens. After the chunks of 512, pieces of
// 256, 128, 64, 32 and 16 tokens hold the rest, each size at most once and in that order. So a later
// prompt finds the longest stored prefix by looking for the largest piece first.
//
// A model with windows or recurrent states stores whole states, each under the hash of all its tokens.
//
// Objects are written behind (write_behind.h). No error of a store reaches a request.
//
// Thread safety: one thread at a time, the engine's.
// Design: docs/design/store.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcache/snapshot.h"
#include "kvcache/store.h"
#include "kvcache_engine/session.h"
#include "store/write_behind.h"

namespace kvcache {

class PrefixStore {
 public:
  static constexpr Position kChunk = 512;      // tokens of the largest piece
  static constexpr Position kLeastPiece = 16;  // tokens of the smallest one

  // `engine` must outlive it. Reads all of the model's file if `store` does not know its hash. Errors:
  // kOutOfMemory.
  static Result<std::unique_ptr<PrefixStore>> Make(Engine& engine, std::shared_ptr<Store> store);

  // What came from the store, and how long that took.
  struct Loaded {
    Position tokens = 0;
    double ms = 0.0;
    std::string problem;  // why a stored prefix was not used; empty if there is none
  };
  // Extends the session to the longest stored prefix of `tokens`, and at most to all but the last token.
  // REQUIRES: the session holds a prefix of `tokens`.
  Loaded Load(Session& session, std::span<const std::int32_t> tokens);

  enum class Extent : std::uint8_t {
    kWholeChunks,  // chunks of 512 tokens; does not wait for room in the queue
    kAll,
  };
  // Stores what the session holds and the store does not. Does nothing for a model with windows or
  // recurrent states, or with a session that was shifted.
  void Save(const Session& session, Extent extent);
  // Stores a state of [0, tokens.size()) of a model with windows or recurrent states; does nothing for
  // another model.
  void SaveState(const Snapshot& state, std::span<const std::int32_t> tokens);

  // Returns when everything is written.
  void Flush() { writer_.Flush(); }
  // Returns why something was not stored since the last call, or an empty text.
  std::string TakeProblem() { return writer_.TakeProblem(); }

  Store& store() { return *store_; }
  const StoreHash& fingerprint() const { return fingerprint_; }
  // Returns whether a state's size does not depend on its tokens.
  bool states_are_small() const { return states_are_small_; }

 private:
  struct Piece {
    ObjectId id;
    Position begin = 0;
    Position end = 0;
  };

  PrefixStore(Engine& engine, std::shared_ptr<Store> store);

  bool Has(const ObjectId& id);
  Result<StoreHash> KeyAfter(const StoreHash& parent, std::span<const std::int32_t> tokens) const;
  using Accepts = std::function<Result<bool>(const ObjectId& id)>;

  // Returns the piece before the first one.
  Piece Nothing() const { return {{fingerprint_, root_}, 0, 0}; }
  // Returns the pieces of `tokens` behind `from` that are accepted, none smaller than `least`.
  Result<std::vector<Piece>> Divide(std::span<const std::int32_t> tokens, Position least,
                                    Piece from, const Accepts& accepts) const;
  Result<ObjectId> StateId(std::span<const StoreHash> chain,
                           std::span<const std::int32_t> tokens) const;
  Result<std::vector<StoreHash>> Chain(std::span<const std::int32_t> tokens) const;
  Status LoadPieces(Session& session, std::span<const std::int32_t> tokens);
  Status LoadState(Session& session, std::span<const std::int32_t> tokens);
  Status LoadObject(Session& session, const ObjectId& id, std::span<const std::int32_t> tokens);
  Status Write(const Snapshot& snapshot, const ObjectId& id, int most_wait_ms);

  Engine& engine_;
  std::shared_ptr<Store> store_;
  StoreHash fingerprint_;
  StoreHash root_;  // the key of no tokens
  const bool is_divisible_;
  bool states_are_small_ = true;
  Piece saved_;  // the last chunk of the session that the store has
  WriteBehind writer_;
};

}  // namespace kvcache
