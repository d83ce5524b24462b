// An expert that every token goes through, beside those that a router chooses for it.
//
//   out = Wdown (silu(Wgate h) × (Wup h)), times sigmoid(w · h) where it has a gate
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/blocks.h"

namespace kvcache {

enum class SharedExpertGate : std::uint8_t { kNone, kSigmoid };

// Named as in GGUF: ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp, ffn_gate_inp_shexp.
struct SharedExpert {
  GatedFeedForward ffn;
  std::optional<Projection> gate;  // width → 1

  static Result<SharedExpert> Load(WeightReader& reader, const std::string& prefix,
                                   std::int64_t width, std::int64_t inner, SharedExpertGate gate);
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;  // out may be h
};

}  // namespace kvcache
