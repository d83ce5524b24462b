// What a pass reads and computes by its rows, as a multiple of a pass of one row: the distance between two
// sizes of passes, for those who estimate a time between two that were measured.
//
// In a dense model every row costs the same: the load is the number of rows. In a mixture of experts a pass
// reads the weights of each distinct expert of its rows once. Rows choose partly the same experts, so the
// load grows fast at first and slowly later. The distinct experts are counted in the passes themselves.
//
//   rows            1    2    3    4    8
//   distinct        8   14   19   23   34      of a layer with 8 of 64
//   load          1.0  1.8  2.5  3.1  4.7      and a sixteenth for each row more
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>

namespace kvcache {

class PassLoad {
 public:
  // Counts a pass: `experts` is the sum of its layers' distinct experts; 0: a dense model.
  void Count(int rows, std::int64_t experts);
  // Returns whether passes have experts, as far as is known.
  bool has_experts() const { return has_experts_; }
  // Returns the load of a pass. It grows with the rows; 1 for one row. REQUIRES: rows >= 1.
  double Of(double rows) const;

 private:
  static constexpr int kExact = 64;  // larger passes are prompts' and have nearly all experts

  // Returns the expected distinct experts, on a line through the nearest measured numbers, both as logarithms.
  double Experts(double rows) const;

  std::array<double, kExact> experts_{};  // by rows - 1; 0: not measured
  bool has_experts_ = false;
};

}  // namespace kvcache
