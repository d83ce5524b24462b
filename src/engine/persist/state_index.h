// Tells which states of a prompt a store has, so that a lookup need not ask for every length.
//
// For each chunk of 512 tokens, an object lists the states that end in it: those whose prompts agree up to
// the beginning of the chunk. Its key depends on that beginning alone. A list has the latest 64 states; two
// processes that add at the same moment may lose one of both, which the next one who uses it adds again.
//
// Bytes: "kvidx001", then for each state, the latest first: u32 length, 32 bytes key. Little-endian.
//
// Thread safety: free functions; those of the store.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/persist/prefix_keys.h"
#include "kvcache/store.h"

namespace kvcache {

// Is given a state. Returns whether the search continues.
using StateFunction = std::function<Result<bool>(const StoredPiece& state)>;

// Calls `function` with each state of `tokens` of lengths [least, most] that the lists name, the longest
// first. Some may be gone. Errors: those of the function, and if no call ended the search, the first of the
// store; kCorrupt for a damaged list.
Status ForEachState(Store& store, const PrefixKeys& keys, std::span<const std::int32_t> tokens,
                    std::uint64_t salt, Position min, Position max, const StateFunction& function);

// Lists a state, if it is not. `list` is PrefixKeys::ListId of its chunk. Errors: the store's.
Status ListState(Store& store, const ObjectId& list, const StoredPiece& state);

}  // namespace kvcache
