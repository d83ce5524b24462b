// Rotations by positions of three axes.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/cpu_backend.h"
#include "model/graph/pass.h"

namespace kvcache {
namespace {

constexpr int kPairs = 8;
constexpr int kHeads = 3;
constexpr int kTokens = 5;

// Each pair has the bits of a rotation by the positions of its axis alone.
TEST(PassAxesTest, EachPairIsRotatedByItsAxis) {
  const auto backend = std::move(MakeCpuBackend({.threads = 1})).value();
  std::vector<float> frequencies;
  for (int i = 0; i < kPairs; ++i) frequencies.push_back(1.0f / static_cast<float>(1 + i * i));
  const std::vector<Position> axes = {7, 7, 7, 9, 10, 7, 8, 8, 9, 10, 7, 7, 11, 9, 10};
  const std::vector<std::uint8_t> of_pair = {0, 0, 1, 1, 1, 2, 2, 2};
  std::mt19937 random(1);
  std::vector<float> values(2 * kPairs * kHeads * kTokens);
  for (float& value : values) value = static_cast<float>(random() % 1000) / 500.0f - 1.0f;
  const auto view = [](std::vector<float>& of) {
    return TensorView::Dense(reinterpret_cast<std::byte*>(of.data()), DType::kF32, 2 * kPairs,
                             kHeads, kTokens);
  };
  for (const auto pairing : {RopeParams::Pairing::kHalves, RopeParams::Pairing::kInterleaved}) {
    const RopeParams rope{.pairing = pairing, .dims = 2 * kPairs, .inv_freq = frequencies};
    const std::vector<Position> positions(kTokens, 0);
    std::vector<float> rotated = values;
    const ActivationBuffer none;
    Pass pass(*backend, none, nullptr, positions, nullptr);
    pass.UseAxes({.positions = axes, .of_pair = of_pair});
    pass.Rope(view(rotated), rope);
    ASSERT_TRUE(pass.status().ok()) << pass.status().message();
    for (std::size_t axis = 0; axis < 3; ++axis) {
      std::vector<float> alone = values;
      const auto own = std::span(axes).subspan(axis * kTokens, kTokens);
      ASSERT_TRUE(backend->Rope(view(alone), own, rope).ok());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t in_head = i % (2 * kPairs);
        const std::size_t pair =
            pairing == RopeParams::Pairing::kHalves ? in_head % kPairs : in_head / 2;
        if (of_pair[pair] != axis) continue;
        EXPECT_EQ(rotated[i], alone[i]) << axis << " " << i;
      }
    }
  }
}

TEST(PassAxesTest, WrongSizesAreErrors) {
  const auto backend = std::move(MakeCpuBackend({.threads = 1})).value();
  const std::vector<float> frequencies(kPairs, 1.0f);
  std::vector<float> values(2 * kPairs);
  const TensorView x =
      TensorView::Dense(reinterpret_cast<std::byte*>(values.data()), DType::kF32, 2 * kPairs, 1, 1);
  const std::vector<Position> positions = {0};
  const std::vector<Position> axes = {1, 2, 3};
  const ActivationBuffer none;
  Pass pass(*backend, none, nullptr, positions, nullptr);
  const std::vector<std::uint8_t> few(kPairs - 1, 0);
  pass.UseAxes({.positions = axes, .of_pair = few});
  pass.Rope(x, {.dims = 2 * kPairs, .inv_freq = frequencies});
  EXPECT_EQ(pass.status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace kvcache
