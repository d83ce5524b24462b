// Compares norms of rows with the CPU backend's, bit by bit.
#include "backend/cuda/ops/norms.h"

#include <gtest/gtest.h>

#include <string>

#include "backend/cuda/ops/ops_testing.h"

namespace kvcache::cuda::norms_test {
namespace {

using testing::BothBackends;
using testing::Content;
using testing::ExpectSameStatus;
using testing::Mirror;

class CudaNorms : public ::testing::TestWithParam<int> {
 protected:
  // Calls run(x, weight, y, what) for rows of many widths, and compares. y may be x.
  template <class Run>
  void ForRows(const Run& run) {
    for (const std::int64_t width :
         {1, 5, 31, 32, 33, 63, 64, 65, 128, 200, 256, 511, 512, 513, 1001, 4096, 8192, 8500}) {
      for (const std::int64_t gap : {0, 3, 4}) {
        if (gap != 0 && width > 1001 && both_.Draw(0, 3) != 0) continue;  // large ones take long
        const std::int64_t rows = width > 512 ? 2 : both_.Draw(1, 11);
        const bool special = both_.Draw(0, 3) == 0;
        const Content content = special ? Content::kSpecial : Content::kNumbers;
        const Mirror x = both_.Tensor({width, rows, 1}, content, gap, gap % 2);
        const Mirror weight = both_.Tensor({width, 1, 1}, content);
        const Mirror y =
            both_.Draw(0, 1) == 0 ? x : both_.Tensor({width, rows, 1}, Content::kNumbers, gap);
        const std::string what = "width " + std::to_string(width) + ", gap " + std::to_string(gap);
        run(x, weight, y, what);
        both_.ExpectSame(what);
        both_.Forget();
      }
    }
  }

  BothBackends both_{GetParam()};
  Backend& cpu_ = both_.cpu();
  Device& device_ = both_.device();
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaNorms, ::testing::Range(1, 4));

TEST_P(CudaNorms, RmsNorm) {
  ForRows([&](const Mirror& x, const Mirror& weight, const Mirror& y, const std::string& what) {
    ExpectSameStatus(cpu_.RmsNorm(x.host, weight.host, 1e-6f, y.host),
                     RmsNorm(device_, x.device, weight.device, 1e-6f, y.device), what);
  });
}

TEST_P(CudaNorms, Center) {
  ForRows([&](const Mirror& x, const Mirror&, const Mirror& y, const std::string& what) {
    ExpectSameStatus(cpu_.Center(x.host, y.host), Center(device_, x.device, y.device), what);
  });
}

TEST_P(CudaNorms, ErrorsAreThoseOfTheCpu) {
  const Mirror x = both_.Tensor({8, 2, 1});
  const Mirror other = both_.Tensor({9, 2, 1});
  ExpectSameStatus(cpu_.RmsNorm(x.host, other.host, 1e-6f, x.host),
                   RmsNorm(device_, x.device, other.device, 1e-6f, x.device), "weight");
  ExpectSameStatus(cpu_.Center(x.host, other.host), Center(device_, x.device, other.device),
                   "center");
  EXPECT_EQ(Center(device_, x.device, other.device).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache::cuda::norms_test
