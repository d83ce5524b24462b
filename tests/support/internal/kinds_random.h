// Makes random caches of the library's kinds, with reference models that inspect them.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <random>
#include <string>

#include "support/cache_driver.h"

namespace kvcache::testing {

// The kinds that RandomSetup makes.
enum class TestKind {
  kFull,
  kWindow,
  kRetained,  // a window that retains more tokens than it shows
  kChunk,     // with and without a window
  kEncoder,
  kRecurrent,
  kSlidingAndFull,  // wrappers, from here on
  kDecoderAndEncoder,
  kRecurrentAndSliding,
};
inline constexpr TestKind kAllKinds[] = {
    TestKind::kFull,
    TestKind::kWindow,
    TestKind::kRetained,
    TestKind::kChunk,
    TestKind::kEncoder,
    TestKind::kRecurrent,
    TestKind::kSlidingAndFull,
    TestKind::kDecoderAndEncoder,
    TestKind::kRecurrentAndSliding,
};
std::string NameOf(TestKind kind);  // "Window"

// Returns a small random cache of that kind.
DriverSetup RandomSetup(TestKind kind, std::mt19937& random);

}  // namespace kvcache::testing
