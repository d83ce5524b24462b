// The number of the arithmetic's definition, docs/design/exactness.md. It grows with every change that moves
// bits: what was stored under another number is never mixed with what is computed.
//
// 2: scaled sums of integers; own exp, expm1, log1p, sine and cosine; routers in f32; norms in 64 lanes.
#pragma once

namespace kvcache::arithmetic {

inline constexpr int kVersion = 2;

}  // namespace kvcache::arithmetic
