// The measured time of a pass by its tokens.
//
// Histories grow, and other programs take a part of the machine. Both change the time of all passes, while only those
// of some sizes are run. So a small pass that takes longer than expected makes all expected times longer.
//
// The time of a size that was not run for 256 passes is forgotten. So a size that was slow once, on a busy machine, is
// tried again.
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
  bool known() const { return first_ != kNone; }
  // Returns the expected seconds of a pass, on a line through the nearest that were measured.
  // REQUIRES: known(), tokens >= 1.
  double Seconds(int tokens) const;

 private:
  // Each number up to kExact has a point of its own; above, each eighth of an octave.
  static constexpr int kExact = 64;
  static constexpr int kPerOctave = 8;
  static constexpr int kOctaves = 16;
  static constexpr std::size_t kPoints = kExact + kPerOctave * kOctaves;
  static constexpr std::size_t kNone = kPoints;
  struct Point {
    double tokens = 0.0;   // mean; 0: not measured
    double seconds = 0.0;  // mean, at the pace of 1
    int measured = 0;      // the pass that it was last
  };

  static std::size_t IndexOf(int tokens);
  double SecondsAtPaceOfOne(int tokens) const;
  // Returns the seconds of one token more behind a point that was measured.
  double SlopeUpTo(std::size_t index) const;
  void LinkNeighbors();
  // Forgets sizes that were not run for long.
  void Forget();

  std::array<Point, kPoints> points_{};
  double pace_ = 1.0;  // times the seconds of the points
  int passes_ = 0;
  // Indices of the nearest points that were measured, or kNone.
  std::size_t first_ = kNone;
  std::array<std::size_t, kPoints> below_{};
  std::array<std::size_t, kPoints> above_{};
};

}  // namespace kvcache
