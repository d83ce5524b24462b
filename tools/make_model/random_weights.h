// Counter-based random weights: value i of a tensor depends on the seed, the tensor's name and i
// alone. Any thread can therefore make any part, and the file does not depend on the division of
// the work.
//
// Thread safety: values; calls are const.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvcache::make_model {

enum class Distribution : std::uint8_t {
  kNormal,      // mean 0 and standard deviation `scale`; nearly normal, within 3.5 deviations
  kNorm,        // uniform from scale / 2 to 3 scale / 2: a norm's weight
  kSignedNorm,  // the same with a random sign
};

class RandomWeights {
 public:
  RandomWeights(std::uint64_t seed, std::string_view name);

  // Writes values [first, first + out.size()) of the tensor. The bits are the same on every
  // machine.
  void Fill(Distribution distribution, float scale, std::uint64_t first,
            std::span<float> out) const;

 private:
  std::uint64_t key_;
};

}  // namespace kvcache::make_model
