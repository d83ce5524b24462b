// Names the prefixes of prompts in a store.
//
// A model whose layers keep every token stores pieces, so that prompts share what they have in common:
//
//   tokens   0 ........ 512 ........ 1024 .... 1152 . 1184
//   pieces   [ 512     )[ 512      )[ 128   )[ 32 )          and 7 tokens that are not stored
//
// The key of a piece is a hash of the key before it and its tokens. After the chunks of 512, pieces of
// 256, 128, 64, 32 and 16 tokens hold the rest, each size at most once and in that order. So a later
// prompt finds the longest stored prefix by looking for the largest piece first.
//
// A model with windows or recurrent states stores whole states, each under the hash of all its tokens.
//
// The output of an encoder depends on all of its text, so it has one name for all tokens.
//
// The salt decides the key of no tokens, and so all others: prompts with other salts share nothing.
//
// Thread safety: immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvcache/store.h"
#include "kvcache/types.h"

namespace kvcache {

struct StoredPiece {
  ObjectId id;
  Position begin = 0;
  Position end = 0;
};

class PrefixKeys {
 public:
  static constexpr Position kChunk = 512;    // tokens of the largest piece
  static constexpr Position kMinPiece = 16;  // tokens of the smallest one

  // Errors: kOutOfMemory.
  static Result<PrefixKeys> Make(const StoreHash& fingerprint);

  // Returns the piece before the first one. Errors: kOutOfMemory.
  Result<StoredPiece> Nothing(std::uint64_t salt) const;

  using Accepts = std::function<bool(const ObjectId& id)>;
  // Returns the pieces of `tokens` behind `from` that are accepted, none smaller than `min`. Errors:
  // kOutOfMemory.
  Result<std::vector<StoredPiece>> Divide(std::span<const std::int32_t> tokens, Position min,
                                          StoredPiece from, const Accepts& accepts) const;

  // Returns the keys after 0, 512, 1024, … tokens. Errors: kOutOfMemory.
  Result<std::vector<StoreHash>> Chain(std::span<const std::int32_t> tokens,
                                       std::uint64_t salt) const;
  // Returns the name of the state after `tokens`, which `chain` begins with. Errors: kOutOfMemory.
  Result<ObjectId> StateId(std::span<const StoreHash> chain,
                           std::span<const std::int32_t> tokens) const;

  // Returns the name of the output of an encoder that has read `text`. No prefix has it. Errors:
  // kOutOfMemory.
  Result<ObjectId> OutputId(std::span<const std::int32_t> text, std::uint64_t salt) const;

  // Returns the name of the list of states that end in the chunk behind `chunk`, a key of a chain
  // (state_index.h). Errors: kOutOfMemory.
  Result<ObjectId> ListId(const StoreHash& chunk) const;

  const StoreHash& fingerprint() const { return fingerprint_; }

 private:
  PrefixKeys(const StoreHash& fingerprint, const StoreHash& root)
      : fingerprint_(fingerprint), root_(root) {}

  StoreHash fingerprint_;
  StoreHash root_;  // the key of no tokens without a salt
};

}  // namespace kvcache
