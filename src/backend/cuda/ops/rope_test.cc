// Compares rotations with the CPU backend's, bit by bit.
#include "backend/cuda/ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "backend/cuda/ops/ops_testing.h"

namespace kvcache::cuda::rope_test {
namespace {

using testing::BothBackends;
using testing::Content;
using testing::ExpectSameStatus;
using testing::Mirror;

class CudaRope : public ::testing::TestWithParam<int> {
 protected:
  std::vector<Position> Positions(std::int64_t batch) {
    std::vector<Position> positions(static_cast<std::size_t>(batch));
    for (Position& position : positions) {
      position = both_.Draw(0, 3) == 0 ? both_.Draw(0, 2'000'000) : both_.Draw(0, 500);
    }
    return positions;
  }
  static std::vector<float> Frequencies(int pairs, double base) {
    std::vector<float> frequencies(static_cast<std::size_t>(pairs));
    for (int i = 0; i < pairs; ++i) {
      frequencies[static_cast<std::size_t>(i)] =
          static_cast<float>(std::pow(base, -static_cast<double>(i) / pairs));
    }
    return frequencies;
  }
  void Rotate(const Mirror& x, std::span<const Position> positions, const RopeParams& rope,
              const std::string& what) {
    ExpectSameStatus(cpu_.Rope(x.host, positions, rope),
                     Rope(device_, both_.memory(), tables_, x.device, positions, rope), what);
  }

  BothBackends both_{GetParam()};
  Backend& cpu_ = both_.cpu();
  Device& device_ = both_.device();
  RopeTables tables_;
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRope, ::testing::Range(1, 4));

TEST_P(CudaRope, HeadsOfAllShapes) {
  using Pairing = RopeParams::Pairing;
  for (const Pairing pairing : {Pairing::kInterleaved, Pairing::kHalves}) {
    for (const std::int64_t head_dim : {2, 6, 64, 80, 128}) {
      for (const std::int64_t gap : {0, 5}) {
        const std::int64_t heads = both_.Draw(1, 9);
        const std::int64_t batch = both_.Draw(1, 7);
        const int dims = 2 * both_.Draw(0, static_cast<int>(head_dim) / 2);
        const std::vector<float> inv_freq = Frequencies(dims / 2, 10'000.0);
        const RopeParams rope{.pairing = pairing,
                              .dims = dims,
                              .inv_freq = inv_freq,
                              .magnitude = both_.Draw(0, 1) == 0 ? 1.0f : 1.19f,
                              .first = both_.Draw(0, static_cast<int>(head_dim) - dims)};
        const Mirror x = both_.Tensor({head_dim, heads, batch}, Content::kSpecial, gap);
        const std::string what = "head_dim " + std::to_string(head_dim) + ", dims " +
                                 std::to_string(dims) + ", heads " + std::to_string(heads);
        Rotate(x, Positions(batch), rope, what);
        both_.ExpectSame(what);
        both_.Forget();
      }
    }
  }
}

// Three tables take turns in the two places.
TEST_P(CudaRope, TablesAreThoseOfTheArguments) {
  const std::vector<float> slow = Frequencies(32, 1e6);
  const std::vector<float> fast = Frequencies(32, 1e4);
  const std::vector<Position> positions = Positions(5);
  const std::vector<Position> later = Positions(6);
  for (int i = 0; i < 12; ++i) {
    const bool long_batch = both_.Draw(0, 1) == 1;
    const RopeParams rope{.dims = 64,
                          .inv_freq = both_.Draw(0, 1) == 0 ? slow : fast,
                          .magnitude = both_.Draw(0, 1) == 0 ? 1.0f : 0.5f};
    const Mirror x = both_.Tensor({64, 3, long_batch ? 6 : 5});
    Rotate(x, long_batch ? later : positions, rope, "table");
  }
  both_.ExpectSame("tables");
}

TEST_P(CudaRope, ErrorsAreThoseOfTheCpu) {
  const Mirror x = both_.Tensor({8, 2, 3});
  const std::vector<float> inv_freq = Frequencies(4, 1e4);
  const std::vector<Position> positions = Positions(3);
  Rotate(x, positions, {.dims = 7, .inv_freq = inv_freq}, "odd");
  Rotate(x, positions, {.dims = 8, .inv_freq = inv_freq, .first = 1}, "first");
  Rotate(x, std::span(positions).first(2), {.dims = 8, .inv_freq = inv_freq}, "positions");
  both_.ExpectSame("errors");
}

}  // namespace
}  // namespace kvcache::cuda::rope_test
