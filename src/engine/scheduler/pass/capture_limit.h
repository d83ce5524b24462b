#pragma once

namespace kvcache {

// Captures of one pass, at most. Recurrent caches keep as many states for them, at least.
inline constexpr int kMaxCapturesPerPass = 6;

}  // namespace kvcache
