// The views of the states of a batch that has as many tokens of each sequence (kvcache/recurrent_cache.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"

namespace kvcache {

class RecurrentViews {
 public:
  // Both must outlive this.
  RecurrentViews(RecurrentParts& parts, RecurrentPass& pass) : parts_(parts), pass_(pass) {}

  // As ConvState, RecurrentState, NextConvState and so on in RecurrentCache, by kind.
  Result<TensorView> Read(StateKind kind, int layer, std::span<const std::int64_t> dims);
  Result<TensorView> Next(StateKind kind, int layer, std::span<const std::int64_t> dims);
  Status Update(StateKind kind, int layer, const TensorView& state);
  // Returns the dims of a convolution state.
  std::array<std::int64_t, 2> conv_dims() const {
    return {parts_.options.conv_dim, parts_.options.conv_channels};
  }

 private:
  RecurrentParts& parts_;
  RecurrentPass& pass_;
};

}  // namespace kvcache
