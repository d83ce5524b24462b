// Rows that take the place of embeddings in a batch.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/status.h"
#include "kvcache_engine/engine.h"

namespace kvcache {

// Returns Ok if the batch's rows are as InputRows and EngineBatch say, else kInvalidArgument, or kUnsupported for
// drafts.
Status CheckInputRows(const EngineBatch& batch);

// Replaces `indices` by the batch indices of the tokens that see each other. Throws std::bad_alloc.
void TokensThatSeeEachOther(std::span<const InputRows> rows, std::vector<std::int32_t>& indices);

}  // namespace kvcache
