// Compares the choice of experts and their weighted sums with the CPU backend's, bit by bit.
#include "backend/cuda/ops/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "backend/cuda/ops/ops_testing.h"

namespace kvcache::cuda::experts_test {
namespace {

using testing::BothBackends;
using testing::Content;
using testing::ExpectSameStatus;
using testing::Mirror;

class CudaExperts : public ::testing::TestWithParam<int> {
 protected:
  void RouteBoth(const Mirror& logits, const RouterOptions& options, const std::string& what) {
    const auto count = static_cast<std::size_t>(logits.host.dims[1] * options.chosen);
    std::vector<std::int32_t> experts(count), on_device(count);
    std::vector<float> weights(count), weights_on_device(count);
    ExpectSameStatus(
        cpu_.Route(logits.host, options, experts, weights),
        Route(device_, both_.memory(), logits.device, options, on_device, weights_on_device), what);
    EXPECT_EQ(experts, on_device) << what;
    BothBackends::ExpectSameValues(weights, weights_on_device, what);
  }

  BothBackends both_{GetParam()};
  Backend& cpu_ = both_.cpu();
  Device& device_ = both_.device();
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaExperts, ::testing::Range(1, 4));

TEST_P(CudaExperts, RouteWithAllOptions) {
  using Gate = RouterOptions::Gate;
  using Weights = RouterOptions::Weights;
  for (const int experts : {1, 5, 16, 31, 32, 33, 48, 64, 130, 256}) {
    for (const Gate gate : {Gate::kSoftmax, Gate::kSigmoid}) {
      for (const Weights weights : {Weights::kGateValues, Weights::kNormalized}) {
        for (const bool biased : {false, true}) {
          const Content content = both_.Draw(0, 1) == 0 ? Content::kNumbers : Content::kSpecial;
          const std::vector<float> bias = both_.Values(experts, content);
          RouterOptions options{.chosen = both_.Draw(1, std::min(experts, 20)),
                                .gate = gate,
                                .weights = weights,
                                .scale = both_.Draw(0, 1) == 0 ? 1.0f : 2.5f};
          if (biased) options.selection_bias = bias;
          const Mirror logits =
              both_.Tensor({experts, both_.Draw(1, 4), 1}, content, both_.Draw(0, 3));
          RouteBoth(logits, options,
                    std::to_string(experts) + " experts, chosen " + std::to_string(options.chosen) +
                        (biased ? ", biased" : "") + ", gate " +
                        std::to_string(static_cast<int>(gate)));
          both_.Forget();
        }
      }
    }
  }
}

TEST_P(CudaExperts, RouteByGroups) {
  for (const auto& [groups, size] : {std::pair{2, 4}, {8, 4}, {8, 32}, {5, 7}, {40, 3}, {3, 1}}) {
    for (int i = 0; i < 6; ++i) {
      const Content content = i % 3 == 2 ? Content::kSpecial : Content::kNumbers;
      const int used = both_.Draw(1, groups);
      const std::vector<float> bias = both_.Values(groups * size, content);
      RouterOptions options{
          .chosen = both_.Draw(1, std::min(used * size, 12)),
          .gate = i % 2 == 0 ? RouterOptions::Gate::kSigmoid : RouterOptions::Gate::kSoftmax,
          .groups = groups,
          .groups_used = used,
          .group_best = both_.Draw(1, std::min(size, 3))};
      if (i < 4) options.selection_bias = bias;
      const Mirror logits = both_.Tensor({groups * size, 3, 1}, content);
      RouteBoth(logits, options,
                std::to_string(groups) + " groups of " + std::to_string(size) + ", used " +
                    std::to_string(used));
      both_.Forget();
    }
  }
}

// Equal values are ordered by number, and NaNs never win but where the search begins.
TEST_P(CudaExperts, RouteEqualLogitsAndNaN) {
  const float nan = std::nanf("");
  for (int i = 0; i < 40; ++i) {
    const Mirror logits = both_.Tensor({70, 1, 1});
    std::vector<float> values(70);
    for (float& value : values) {
      const float draws[] = {1.0f, 0.5f, 0.0f, -0.0f, nan};
      value = draws[both_.Draw(0, i % 2 == 0 ? 4 : 2)];
    }
    both_.Set(logits, values);
    RouteBoth(logits, {.chosen = both_.Draw(1, 70)}, "equal logits");
    both_.Forget();
  }
}

TEST_P(CudaExperts, RouteErrorsAreThoseOfTheCpu) {
  const Mirror logits = both_.Tensor({8, 2, 1});
  const std::vector<float> bias(7);
  RouteBoth(logits, {.chosen = 9}, "chosen");
  RouteBoth(logits, {.chosen = 2, .selection_bias = bias}, "bias");
  RouteBoth(logits, {.chosen = 2, .groups = 3}, "groups");
}

TEST_P(CudaExperts, Combine) {
  for (const std::int64_t width : {1, 3, 4, 64, 1024, 1030, 2500}) {
    for (const std::int64_t gap : {0, 1, 4}) {
      const std::int64_t batch = both_.Draw(1, 4);
      const std::int64_t parts = both_.Draw(1, 9);
      const std::int64_t of_y = both_.Draw(1, 12);
      const Mirror y = both_.Tensor({width, of_y, 1}, Content::kSpecial, gap);
      const Mirror out = both_.Tensor({width, batch, 1}, Content::kNumbers, gap);
      std::vector<std::int32_t> columns(static_cast<std::size_t>(batch * parts));
      for (std::int32_t& column : columns) column = both_.Draw(0, static_cast<int>(of_y) - 1);
      const std::vector<float> weights = both_.Values(batch * parts, Content::kSpecial);
      const std::string what = "width " + std::to_string(width) + ", gap " + std::to_string(gap);
      ExpectSameStatus(cpu_.Combine(y.host, columns, weights, out.host),
                       Combine(device_, both_.memory(), y.device, columns, weights, out.device),
                       what);
      both_.ExpectSame(what);
      both_.Forget();
    }
  }
}

TEST_P(CudaExperts, CombineErrorsAreThoseOfTheCpu) {
  const Mirror y = both_.Tensor({8, 3, 1});
  const Mirror out = both_.Tensor({8, 2, 1});
  const std::vector<std::int32_t> columns = {0, 1, 2, 3};
  const std::vector<float> weights(4);
  const auto both = [&](std::size_t count) {
    const auto some = std::span(columns).first(count);
    ExpectSameStatus(cpu_.Combine(y.host, some, weights, out.host),
                     Combine(device_, both_.memory(), y.device, some, weights, out.device),
                     std::to_string(count));
  };
  both(4);
  both(3);
  EXPECT_TRUE(
      Combine(device_, both_.memory(), y.device, {}, {}, both_.Tensor({8, 0, 1}).device).ok());
}

}  // namespace
}  // namespace kvcache::cuda::experts_test
