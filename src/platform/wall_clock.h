// The time of day. People and programs set it to anything at any moment, also back: it is for display, and
// for comparisons with the times of files. The order of use never depends on it.
//
// Thread safety: all calls from any number of threads.
#pragma once

#include <cstdint>

namespace kvcache {

// Returns the nanoseconds since 1970, as the machine's clock says.
std::int64_t WallClockNs();
// The same in seconds.
std::int64_t WallClockSeconds();

// Lets WallClockNs return what `clock` returns, while this exists. For tests.
class WallClockForTests {
 public:
  explicit WallClockForTests(std::int64_t (*clock)());
  ~WallClockForTests();
  WallClockForTests(const WallClockForTests&) = delete;
  WallClockForTests& operator=(const WallClockForTests&) = delete;
};

}  // namespace kvcache
