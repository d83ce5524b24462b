// Random scripts, and the shortest script that still fails.
#pragma once

#include <functional>
#include <random>
#include <string>

#include "support/cache_driver.h"
#include "support/cache_script.h"

namespace kvcache::testing {

// The kinds that RandomSetup knows.
enum class TestKind {
  kFull,
  kWindow,
  kRetained,  // a window with extra memory
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

// A small cache of that kind.
DriverSetup RandomSetup(TestKind kind, std::mt19937& random);
// Small sizes and any form, for a kind of one's own.
DriverSetup RandomSizes(std::mt19937& random);

// A step that makes sense, mostly, for the state that `twin` is in.
ScriptStep RandomStep(const DriverSetup& setup, const CacheReference& reference,
                      std::mt19937& random);

// Drops steps and tokens for as long as `fails` says true. REQUIRES: fails(script).
Script Shrink(Script script, const std::function<bool(const Script&)>& fails);

}  // namespace kvcache::testing
