// Kernels of the tests that use each function of the language.
#pragma once

#include <cstdint>

namespace kvcache::cuda {

struct LanguageAddArgs {
  const float* x;
  float* y;
  std::int64_t values;
};

// y[block] = the sum of x[256 block … + 255], through shared memory and shuffles.
struct LanguageSumArgs {
  const float* x;
  float* y;
};

// Words of 1, 2, 4, 8 and 16 bytes, and bytes of them in the orders that `selectors` say.
struct LanguageWordsArgs {
  const std::uint32_t* words;      // [4 × 64]
  const std::uint32_t* selectors;  // [64]
  std::uint32_t* sums;             // [64]: of the words of each size
  std::uint32_t* bytes;            // [64]
};

// One warp: d = a b for a of 16 x 32 and b, whose columns lie one after another, of 32 x 8.
struct LanguageMmaArgs {
  const std::uint8_t* a;
  const std::int8_t* b;
  std::int32_t* d;
  int a_is_signed;
  int inputs;  // 32, or 16: the first half
};

// Copies 16 bytes a thread through shared memory, in two groups, and reverses the order of threads.
struct LanguageCopyArgs {
  const std::uint32_t* from;
  std::uint32_t* to;
};

// out[thread] = 256 values: votes, lanes, halves and dot products.
struct LanguageLanesArgs {
  const float* x;
  std::uint32_t* votes;
  float* neighbors;
  std::uint16_t* halves;
  std::int32_t* dots;
};

}  // namespace kvcache::cuda
