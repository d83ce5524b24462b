#pragma once

#include <chrono>

namespace kvcache {

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return 1e3 * SecondsSince(start);
}

}  // namespace kvcache
