#include "vision/patch_rotation.h"

#include "base/arithmetic/doubles.h"

namespace kvcache::vision {
namespace {

constexpr double kBase = 10000.0;  // no file has it

// base^(-2 (i + shift) / dims) for i from 0 to `count` - 1.
std::vector<float> Frequencies(int count, int dims, double shift) {
  std::vector<float> frequencies;
  for (int i = 0; i < count; ++i) {
    frequencies.push_back(static_cast<float>(arithmetic::Power(kBase, -2.0 * (i + shift) / dims)));
  }
  return frequencies;
}

}  // namespace

PatchRotation::PatchRotation(Rotation rotation, int head_dim)
    : rotation_(rotation), head_dim_(head_dim) {
  const int quarter = head_dim / 4;
  if (rotation == Rotation::kInterleavedAxes) {
    // A frequency of zero leaves a pair as it is.
    by_row_ = Frequencies(quarter, head_dim / 2, 0);
    by_column_.assign(static_cast<std::size_t>(quarter), 0.0F);
    by_column_.insert(by_column_.end(), by_row_.begin(), by_row_.end());
    by_row_.resize(static_cast<std::size_t>(2 * quarter), 0.0F);
  } else if (rotation == Rotation::kAxisByAxis) {
    by_row_ = Frequencies(quarter, head_dim / 2, 0);
    by_column_ = Frequencies(quarter, head_dim / 2, 0.5);
  }
}

RopeParams PatchRotation::Params(std::span<const float> frequencies, int first) const {
  const bool halves = rotation_ == Rotation::kInterleavedAxes;
  return {.pairing = halves ? RopeParams::Pairing::kHalves : RopeParams::Pairing::kInterleaved,
          .dims = halves ? head_dim_ : head_dim_ / 2,
          .inv_freq = frequencies,
          .first = first};
}

void PatchRotation::Run(Pass& pass, const PatchOrder& order, std::int64_t first,
                        const TensorView& heads) const {
  if (rotation_ == Rotation::kNone || !pass.runs()) return;
  const auto from = static_cast<std::size_t>(first);
  const auto count = static_cast<std::size_t>(pass.batch());
  pass.Check(
      pass.backend().Rope(heads, std::span(order.rows).subspan(from, count), Params(by_row_, 0)));
  if (!pass.runs()) return;
  pass.Check(pass.backend().Rope(
      heads, std::span(order.columns).subspan(from, count),
      Params(by_column_, rotation_ == Rotation::kAxisByAxis ? head_dim_ / 2 : 0)));
}

}  // namespace kvcache::vision
