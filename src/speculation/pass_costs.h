// The measured time of a pass by its tokens.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>

namespace kvcache {

class PassCosts {
 public:
  // Counts a pass of `tokens` tokens.
  void Count(int tokens, double seconds);
  // Returns whether any pass was measured.
  bool known() const { return known_; }
  // Returns the expected seconds of a pass, on a line through the nearest that were measured.
  // REQUIRES: known(), tokens >= 1.
  double Seconds(int tokens) const;

 private:
  // Each number up to kExact has a point of its own; above, each eighth of an octave.
  static constexpr int kExact = 64;
  static constexpr int kPerOctave = 8;
  static constexpr int kOctaves = 16;
  struct Point {
    double tokens = 0.0;  // mean; 0: not measured
    double seconds = 0.0;
  };

  static std::size_t IndexOf(int tokens);
  // Returns the seconds of one token more behind the point, which was measured.
  double SlopeUpTo(std::size_t index) const;

  std::array<Point, kExact + kPerOctave * kOctaves> points_{};
  bool known_ = false;
};

}  // namespace kvcache
