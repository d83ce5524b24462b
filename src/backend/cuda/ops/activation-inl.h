// Chooses the function of an activation.
//
// Included by kernels only.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "base/arithmetic/activations.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

// Calls f with the activation's function; all threads take the same way.
template <class F>
KVCACHE_DEVICE void WithActivation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kSilu: return f([](float x) { return arithmetic::Silu(x); });
    case Activation::kGelu: return f([](float x) { return arithmetic::Gelu(x); });
    case Activation::kRelu: return f([](float x) { return arithmetic::Relu(x); });
    case Activation::kReluSquared: return f([](float x) { return arithmetic::ReluSquared(x); });
    case Activation::kSigmoid: return f([](float x) { return arithmetic::Sigmoid(x); });
  }
}

}  // namespace kvcache::cuda
