// Chooses a scale for values that become entries of an ascending table, whose first entry is its
// furthest from zero.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

#include "tensor/block_codec.h"
#include "tensor/coded_block.h"

namespace kvcache::codec {

// Returns the code of the entry nearest to x, the lower one of two equally near.
// REQUIRES: kEntries is a power of two.
template <CodeTable kTable, std::size_t kEntries>
unsigned NearestCode(float x) {
  static constexpr auto kMiddles = [] {  // [i]: between the entries i - 1 and i
    std::array<float, kEntries> middles{};
    for (std::size_t i = 1; i < kEntries; ++i) {
      middles[i] = 0.5f * static_cast<float>(kTable[i - 1] + kTable[i]);
    }
    return middles;
  }();
  std::size_t code = 0;
  for (std::size_t step = kEntries / 2; step > 0; step /= 2) {
    code += x > kMiddles[code + step] ? step : 0;
  }
  return static_cast<unsigned>(code);
}

// Returns the scale with the least squared error among those that are found by placing the furthest
// value at and around the first entry, and fitting the scale to the codes of that place.
template <CodeTable kTable, std::size_t kEntries>
float FitTable(const float* values, std::size_t count) {
  float furthest = 0.0f;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::fabs(values[i]) > std::fabs(furthest)) furthest = values[i];
  }
  constexpr int kSteps = 4;  // to both sides
  const auto first = static_cast<float>(kTable[0]);
  float best = furthest / first;
  float best_gain = 0.0f;  // by how much the scale lowers the squared error below that of zeros
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float place = first * (1.0f + 0.04f * static_cast<float>(step));
    const float inverse = InverseOf(furthest / place);
    float product = 0.0f;
    float square = 0.0f;
    for (std::size_t i = 0; i < count; ++i) {
      const auto entry =
          static_cast<float>(kTable[NearestCode<kTable, kEntries>(values[i] * inverse)]);
      product += entry * values[i];
      square += entry * entry;
    }
    if (!(square > 0.0f) || !(product * product > best_gain * square)) continue;
    best_gain = product * product / square;
    best = product / square;
  }
  return best;
}

}  // namespace kvcache::codec
