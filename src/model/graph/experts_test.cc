#include "model/graph/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "kvcache/cpu_backend.h"

namespace kvcache::experts_test {
namespace {

std::vector<float> RandomValues(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// A layer's experts on the CPU, and their expected result.
class ExpertsTest : public ::testing::Test {
 protected:
  static constexpr int kWidth = 32;
  static constexpr int kFfn = 24;
  static constexpr int kExperts = 7;
  static constexpr int kChosen = 3;

  void SetUp() override {
    experts_.params = {.count = kExperts, .used = kChosen, .ffn = kFfn, .weights_scale = 1.5f};
    const auto make = [&](std::vector<float>& values, int inputs, int outputs, int matrices) {
      return std::move(backend_->MakeLinear(TensorView::Dense(values.data(), DType::kF32, inputs,
                                                              outputs, matrices)))
          .value();
    };
    experts_.router.weight = make(router_, kWidth, kExperts, 1);
    experts_.gate = make(gate_, kWidth, kFfn, kExperts);
    experts_.up = make(up_, kWidth, kFfn, kExperts);
    experts_.down = make(down_, kFfn, kWidth, kExperts);
  }

  std::vector<float> Run(std::vector<float> h) {
    const auto batch = static_cast<std::int64_t>(h.size()) / kWidth;
    Pass measure = Pass::Measuring(batch);
    const TensorView none = measure.TakeHidden(kWidth);
    experts_.Run(measure, plan_, none, none);
    EXPECT_TRUE(measure.status().ok());
    EXPECT_TRUE(activations_.Reserve(*backend_, measure.peak_values()).ok());
    const std::vector<Position> positions(static_cast<std::size_t>(batch));
    Pass pass(*backend_, activations_, nullptr, positions, nullptr);
    const TensorView view = TensorView::Dense(h.data(), DType::kF32, kWidth, batch);
    experts_.Run(pass, plan_, view, view);
    EXPECT_TRUE(pass.status().ok()) << pass.status().message();
    EXPECT_LE(pass.peak_values(), measure.peak_values());
    return h;
  }

  // Computes the result in double, one token at a time.
  std::vector<double> Expected(const float* h) const {
    std::vector<std::pair<double, int>> logits;
    for (int e = 0; e < kExperts; ++e) {
      logits.emplace_back(-Dot(router_.data() + e * kWidth, h, kWidth), e);
    }
    std::sort(logits.begin(), logits.end());
    double sum = 0.0;
    for (int i = 0; i < kChosen; ++i) sum += std::exp(-logits[static_cast<std::size_t>(i)].first);
    std::vector<double> out(kWidth);
    for (int i = 0; i < kChosen; ++i) {
      const auto [logit, e] = logits[static_cast<std::size_t>(i)];
      const double weight = 1.5 * std::exp(-logit) / sum;
      const double before = experts_.params.weigh_input ? weight : 1.0;
      std::vector<double> inner;
      for (int f = e * kFfn; f < (e + 1) * kFfn; ++f) {
        const double gate = before * Dot(gate_.data() + f * kWidth, h, kWidth);
        const double upper = before * Dot(up_.data() + f * kWidth, h, kWidth);
        inner.push_back(gate / (1.0 + std::exp(-gate)) * upper);
      }
      for (int d = 0; d < kWidth; ++d) {
        out[static_cast<std::size_t>(d)] +=
            weight / before * Dot(down_.data() + (e * kWidth + d) * kFfn, inner.data(), kFfn);
      }
    }
    return out;
  }

  template <typename T>
  static double Dot(const float* w, const T* x, int count) {
    double sum = 0.0;
    for (int i = 0; i < count; ++i) sum += double{w[i]} * double{x[i]};
    return sum;
  }

  std::vector<float> router_ = RandomValues(kWidth * kExperts, 1);
  std::vector<float> gate_ = RandomValues(kWidth * kFfn * kExperts, 2);
  std::vector<float> up_ = RandomValues(kWidth * kFfn * kExperts, 3);
  std::vector<float> down_ = RandomValues(kWidth * kFfn * kExperts, 4);
  std::unique_ptr<Backend> backend_ = std::move(MakeCpuBackend({.threads = 2})).value();
  Experts experts_;
  ExpertPlan plan_;
  ActivationBuffer activations_;
};

TEST_F(ExpertsTest, AreTheWeightedSumOfTheChosen) {
  constexpr std::size_t kTokens = 40;
  const std::vector<float> h = RandomValues(kWidth * kTokens, 5);
  for (const bool weigh_input : {false, true}) {
    experts_.params.weigh_input = weigh_input;
    const std::vector<float> got = Run(h);
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::vector<double> expected = Expected(h.data() + t * kWidth);
      for (std::size_t d = 0; d < kWidth; ++d) {
        ASSERT_NEAR(got[t * kWidth + d], expected[d], 1e-3)
            << "token " << t << ", input weighted: " << weigh_input;
      }
    }
  }
}

TEST_F(ExpertsTest, CompanyDoesNotShow) {
  constexpr std::size_t kTokens = 90;
  const std::vector<float> h = RandomValues(kWidth * kTokens, 6);
  for (const bool weigh_input : {false, true}) {
    experts_.params.weigh_input = weigh_input;
    const std::vector<float> together = Run(h);
    for (const std::size_t batch : {1u, 2u, 30u}) {
      for (std::size_t t = 0; t < kTokens; t += batch) {
        const auto begin = h.begin() + static_cast<std::ptrdiff_t>(t * kWidth);
        const auto got = Run({begin, begin + static_cast<std::ptrdiff_t>(batch * kWidth)});
        ASSERT_EQ(std::memcmp(got.data(), together.data() + t * kWidth, got.size() * sizeof(float)),
                  0)
            << batch << " from " << t << ", input weighted: " << weigh_input;
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::experts_test
