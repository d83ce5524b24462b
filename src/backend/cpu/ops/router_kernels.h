// The arithmetic of routers (experts.h), for every target.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "kvcache/backend.h"

namespace kvcache::cpu::kernel {

// values[i] = the gate's value of logits[i]: exp(logit - largest), or the sigmoid of the logit. `values`
// may be `logits`.
void GateValues(const float* logits, std::int64_t count, RouterOptions::Gate gate, float largest,
                float* values);

// The sum of exp(logit - largest), and of values, in the 16 virtual lanes of docs/design/exactness.md.
float SumOfExps(const float* logits, std::int64_t count, float largest);
float SumOfShares(const float* values, std::int64_t count);

}  // namespace kvcache::cpu::kernel
