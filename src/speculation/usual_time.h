// The usual time of something that is measured again and again.
//
// Thread safety: a pure function.
#pragma once

#include <algorithm>

namespace kvcache {

// Returns the usual time: `usual` is what it was, 0 if it was not known, and `seconds` the time that was measured
// now. Other programs make some measurements long and none short.
inline double UsualTime(double usual, double seconds) {
  constexpr double kLonger = 0.1;  // weight of a measurement
  constexpr double kShorter = 0.25;
  if (usual == 0.0) return seconds;
  const double weight = seconds < usual ? kShorter : kLonger;
  return usual + weight * (std::min(seconds, 2.0 * usual) - usual);
}

}  // namespace kvcache
