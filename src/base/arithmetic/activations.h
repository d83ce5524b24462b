// Element by element functions of models in f32, each one fixed sequence of operations
// (docs/design/exactness.md). A NaN gives a NaN.
// src/backend/cpu/ops/elementwise_kernels.cc and recurrence_kernels.cc have the same sequences for
// vectors: change both.
//
// Thread safety: pure functions, for any x.
#pragma once

#include "base/arithmetic/exponentials.h"

namespace kvcache::arithmetic {

// x / (1 + exp(-t)). Below -88, t counts as -88.
KVCACHE_ARITHMETIC float OverOnePlusExp(float x, float t) {
  return Div(x, Add(1.0f, BoundedExp(-t)));
}

KVCACHE_ARITHMETIC float Sigmoid(float x) {
  return OverOnePlusExp(1.0f, x);
}

KVCACHE_ARITHMETIC float Silu(float x) {
  return OverOnePlusExp(x, x);
}

// x (1 + tanh(u)) / 2 with u = sqrt(2/π) (x + 0.044715 x³), as x / (1 + exp(-2u)).
KVCACHE_ARITHMETIC float Gelu(float x) {
  return OverOnePlusExp(x, Mul(x, Fma(Mul(x, x), 0x1.2444f2p-4f, 0x1.988454p+0f)));
}

KVCACHE_ARITHMETIC float Relu(float x) {
  return Max(0.0f, x);
}

KVCACHE_ARITHMETIC float ReluSquared(float x) {
  return Mul(Relu(x), Relu(x));
}

// A gate and its up value, both cut at limit: g / (1 + exp(-alpha g)) · (u + 1).
KVCACHE_ARITHMETIC float GateClamped(float gate, float up, float alpha, float limit) {
  const float g = Min(limit, gate);
  const float u = Max(-limit, Min(limit, up));
  return Mul(OverOnePlusExp(g, Mul(g, alpha)), Add(u, 1.0f));
}

// cap · tanh(x / cap).
KVCACHE_ARITHMETIC float SoftCap(float x, float cap) {
  return Mul(cap, Tanh(Div(x, cap)));
}

// αp x² + β x above 0, else αn (expm1(min(x, ε)) - x) + β x. REQUIRES: ε <= 88.
KVCACHE_ARITHMETIC float Xielu(float x, float alpha_positive, float alpha_negative, float beta,
                               float epsilon) {
  const float linear = Mul(beta, x);
  if (x > 0.0f) return Fma(Mul(alpha_positive, x), x, linear);
  return Fma(alpha_negative, Sub(Expm1(Min(epsilon, x)), x), linear);
}

// ln(1 + exp(x)) as max(x, 0) + ln(1 + exp(-|x|)).
KVCACHE_ARITHMETIC float SoftPlus(float x) {
  return Add(Max(0.0f, x), Log1p(Exp(-Abs(x))));
}

// The decay of a recurrent layer's state: exp(rate · step), where rate < 0.
KVCACHE_ARITHMETIC float Decay(float rate, float step) {
  return BoundedExp(Mul(rate, step));
}

}  // namespace kvcache::arithmetic
