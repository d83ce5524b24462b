#include "make_model/random_weights.h"

namespace kvcache::make_model {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): number i of a stream is Mix(key + i · kStep).
constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;

constexpr std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Returns the centred sum of four 16-bit numbers. Its standard deviation is 65536 / √3, up to a
// relative error of 2^-33. The sum is exact, so the value is rounded once, by the product.
float Normal(std::uint64_t bits, float scale) {
  const std::uint64_t sum =
      (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
  return static_cast<float>(static_cast<std::int32_t>(sum) - 2 * 0xffff) * scale;
}

float Norm(std::uint64_t bits, float scale) {
  return (0.5f + static_cast<float>(bits >> 40) * 0x1p-24f) * scale;
}

}  // namespace

RandomWeights::RandomWeights(std::uint64_t seed, std::string_view name) : key_(Mix(seed + kStep)) {
  for (const char character : name) {
    key_ = Mix(key_ ^ static_cast<unsigned char>(character)) + kStep;
  }
}

void RandomWeights::Fill(Distribution distribution, float scale, std::uint64_t first,
                         std::span<float> out) const {
  constexpr float kDeviation = 37837.227f;  // 65536 / √3
  const float unit = scale / kDeviation;
  std::uint64_t state = key_ + first * kStep;
  for (float& value : out) {
    const std::uint64_t bits = Mix(state += kStep);
    switch (distribution) {
      case Distribution::kNormal: value = Normal(bits, unit); break;
      case Distribution::kNorm: value = Norm(bits, scale); break;
      case Distribution::kSignedNorm: value = Norm(bits, bits & 1 ? scale : -scale); break;
    }
  }
}

}  // namespace kvcache::make_model
