#include "vision/patch_rotation.h"

#include "base/arithmetic/doubles.h"

namespace kvcache::vision {
namespace {

// No file has them.
constexpr double kBase = 10000.0;
constexpr double kGemma4Base = 100.0;

// base^(-2 (i + shift) / dims) for i from 0 to `count` - 1.
std::vector<float> Frequencies(int count, int dims, double shift, double base = kBase) {
  std::vector<float> frequencies;
  for (int i = 0; i < count; ++i) {
    frequencies.push_back(static_cast<float>(arithmetic::Power(base, -2.0 * (i + shift) / dims)));
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
  } else if (rotation == Rotation::kColumnsThenRows) {
    by_row_ = Frequencies(quarter, head_dim / 2, 0, kGemma4Base);
    by_column_ = by_row_;
  }
}

RopeParams PatchRotation::Params(std::span<const float> frequencies, int first) const {
  const bool neighbors = rotation_ == Rotation::kAxisByAxis;
  return {.pairing = neighbors ? RopeParams::Pairing::kInterleaved : RopeParams::Pairing::kHalves,
          .dims = rotation_ == Rotation::kInterleavedAxes ? head_dim_ : head_dim_ / 2,
          .inv_freq = frequencies,
          .first = first};
}

void PatchRotation::Run(Pass& pass, const PatchOrder& order, std::int64_t first,
                        const TensorView& heads) const {
  if (rotation_ == Rotation::kNone) return;
  const int half = head_dim_ / 2;
  const auto from = static_cast<std::size_t>(first);
  const auto count = static_cast<std::size_t>(pass.batch());
  const auto rotate = [&](std::span<const Position> positions, const RopeParams& rope) {
    if (pass.runs()) pass.Check(pass.backend().Rope(heads, positions.subspan(from, count), rope));
  };
  rotate(order.rows, Params(by_row_, rotation_ == Rotation::kColumnsThenRows ? half : 0));
  rotate(order.columns, Params(by_column_, rotation_ == Rotation::kAxisByAxis ? half : 0));
}

}  // namespace kvcache::vision
