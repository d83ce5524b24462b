// Compares operations element by element with the CPU backend's, bit by bit.
#include "backend/cuda/ops/elementwise.h"

#include <gtest/gtest.h>

#include <string>

#include "backend/cuda/ops/ops_testing.h"

namespace kvcache::cuda::elementwise_test {
namespace {

using testing::BothBackends;
using testing::Content;
using testing::ExpectSameStatus;
using testing::Mirror;

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kRelu,
                                       Activation::kReluSquared, Activation::kSigmoid};

class CudaElementwise : public ::testing::TestWithParam<int> {
 protected:
  // Calls run(x, y, what) with tensors of many sizes, aligned or not, and compares afterwards.
  template <class Run>
  void ForShapes(const Run& run) {
    for (const std::int64_t width : {1, 3, 4, 250, 1023, 1024, 1027, 2500}) {
      for (const std::int64_t offset : {0, 1}) {
        const Mirror x = both_.Tensor({width, 3, 1}, Content::kSpecial, 0, offset);
        const Mirror y = both_.Tensor({width, 3, 1}, Content::kSpecial, 0, 0);
        const std::string what =
            "width " + std::to_string(width) + ", offset " + std::to_string(offset);
        run(x, y, what);
        both_.ExpectSame(what);
        both_.Forget();
      }
    }
  }

  BothBackends both_{GetParam()};
  Backend& cpu_ = both_.cpu();
  Device& device_ = both_.device();
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaElementwise, ::testing::Range(1, 4));

TEST_P(CudaElementwise, SumsProductsAndGates) {
  ForShapes([&](const Mirror& x, const Mirror& y, const std::string& what) {
    ExpectSameStatus(cpu_.Add(x.host, y.host), Add(device_, x.device, y.device), what);
    ExpectSameStatus(cpu_.Multiply(x.host, y.host), Multiply(device_, x.device, y.device), what);
    ExpectSameStatus(cpu_.Scale(x.host, -0.75f), Scale(device_, x.device, -0.75f), what);
  });
}

TEST_P(CudaElementwise, Activations) {
  for (const Activation activation : kActivations) {
    ForShapes([&](const Mirror& x, const Mirror& y, const std::string& shape) {
      const std::string what =
          shape + ", activation " + std::to_string(static_cast<int>(activation));
      ExpectSameStatus(cpu_.Activate(y.host, activation), Activate(device_, y.device, activation),
                       what);
      ExpectSameStatus(cpu_.Gate(x.host, y.host, activation),
                       Gate(device_, x.device, y.device, activation), what);
    });
  }
}

TEST_P(CudaElementwise, ClampedGates) {
  ForShapes([&](const Mirror& x, const Mirror& y, const std::string& what) {
    ExpectSameStatus(cpu_.GateClamped(x.host, y.host, 1.702f, 1.5f),
                     GateClamped(device_, x.device, y.device, 1.702f, 1.5f), what);
  });
}

TEST_P(CudaElementwise, SoftCapsAndXielu) {
  const XieluParams params{
      .alpha_positive = 0.8f, .alpha_negative = 0.55f, .beta = 0.5f, .epsilon = -1e-6f};
  ForShapes([&](const Mirror& x, const Mirror& y, const std::string& what) {
    ExpectSameStatus(cpu_.SoftCap(x.host, 1.25f), SoftCap(device_, x.device, 1.25f), what);
    ExpectSameStatus(cpu_.Xielu(y.host, params), Xielu(device_, y.device, params), what);
  });
}

TEST_P(CudaElementwise, Columns) {
  for (const std::int64_t width : {1, 4, 7, 1024, 1030, 2052}) {
    for (const std::int64_t gap : {0, 3, 8}) {
      const std::int64_t batch = both_.Draw(1, 5);
      const std::string what = "width " + std::to_string(width) + ", gap " + std::to_string(gap);
      const Mirror x = both_.Tensor({width, batch, 1}, Content::kSpecial, gap, gap % 2);
      const Mirror bias = both_.Tensor({width, 1, 1}, Content::kSpecial, 0, gap % 2);
      const Mirror by = both_.Tensor({1, batch, 1}, Content::kSpecial);
      const std::vector<float> factors = both_.Values(batch, Content::kSpecial);
      ExpectSameStatus(cpu_.AddBias(x.host, bias.host), AddBias(device_, x.device, bias.device),
                       what);
      ExpectSameStatus(cpu_.ScaleColumns(x.host, factors),
                       ScaleColumns(device_, both_.memory(), x.device, factors), what);
      if (width > 1) {
        ExpectSameStatus(cpu_.Multiply(x.host, by.host), Multiply(device_, x.device, by.device),
                         what);
      }
      both_.ExpectSame(what);
      both_.Forget();
    }
  }
}

TEST_P(CudaElementwise, EmptyTensorsAreNoWork) {
  const Mirror x = both_.Tensor({8, 0, 1});
  EXPECT_TRUE(Add(device_, x.device, x.device).ok());
  EXPECT_TRUE(Activate(device_, x.device, Activation::kSilu).ok());
  EXPECT_TRUE(AddBias(device_, x.device, both_.Tensor({8, 1, 1}).device).ok());
  EXPECT_TRUE(ScaleColumns(device_, both_.memory(), x.device, {}).ok());
}

TEST_P(CudaElementwise, ErrorsAreThoseOfTheCpu) {
  const Mirror x = both_.Tensor({8, 2, 1});
  const Mirror other = both_.Tensor({9, 2, 1});
  const Mirror gaps = both_.Tensor({8, 2, 1}, Content::kNumbers, 1);
  const std::vector<float> one = {1.0f};
  ExpectSameStatus(cpu_.Add(x.host, other.host), Add(device_, x.device, other.device), "add");
  ExpectSameStatus(cpu_.Multiply(x.host, other.host), Multiply(device_, x.device, other.device),
                   "multiply");
  ExpectSameStatus(cpu_.Scale(gaps.host, 1.0f), Scale(device_, gaps.device, 1.0f), "scale");
  ExpectSameStatus(cpu_.SoftCap(x.host, 0.0f), SoftCap(device_, x.device, 0.0f), "soft cap");
  ExpectSameStatus(cpu_.AddBias(x.host, other.host), AddBias(device_, x.device, other.device),
                   "add bias");
  ExpectSameStatus(cpu_.ScaleColumns(x.host, one),
                   ScaleColumns(device_, both_.memory(), x.device, one), "scale columns");
  EXPECT_EQ(Add(device_, x.device, other.device).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache::cuda::elementwise_test
