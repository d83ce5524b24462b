// The views of the states of a batch that has as many tokens of each sequence (kvcache/recurrent_cache.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>

#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"

namespace kvcache {

// As ConvState, RecurrentState, NextConvState and so on in RecurrentCache, by kind, for states of these dims.
Result<TensorView> ReadStates(RecurrentParts& parts, const RecurrentPass& pass, StateKind kind,
                              int layer, std::span<const std::int64_t> dims);
Result<TensorView> NextStates(RecurrentParts& parts, const RecurrentPass& pass, StateKind kind,
                              int layer, std::span<const std::int64_t> dims);
Status UpdateStates(RecurrentParts& parts, RecurrentPass& pass, StateKind kind, int layer,
                    const TensorView& state);

}  // namespace kvcache
