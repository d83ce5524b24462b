// The kernels for vectors give the bits of base/arithmetic, which computes one number at a time and which
// CUDA kernels use too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/common/angles.h"
#include "backend/cpu/ops/recurrence.h"
#include "backend/cpu/testing.h"
#include "base/arithmetic/activations.h"
#include "base/arithmetic/angles.h"

namespace kvcache::cpu::single_numbers_test {
namespace {

using testing::ForcedTarget;
using testing::RandomValues;

std::unique_ptr<Backend> MakeBackend(int threads) {
  return std::move(MakeCpuBackend({.threads = threads})).value();
}

bool SameBits(float a, float b) {
  return arithmetic::BitsOf(a) == arithmetic::BitsOf(b);
}

class SingleNumbers : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(forced_.ok()); }
  ForcedTarget forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, SingleNumbers, ::testing::ValuesIn(CpuTargetNames()),
                         [](const auto& instance) { return instance.param; });

// Every 9,973rd float, which are 430,000, and a NaN.
std::vector<float> ManyFloats() {
  std::vector<float> values = {std::numeric_limits<float>::quiet_NaN()};
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 9'973) {
    values.push_back(arithmetic::FloatOf(static_cast<std::uint32_t>(bits)));
  }
  return values;
}

// Returns the first value for which the results of `operation` and `single` differ, as text.
template <typename Operation, typename Single>
std::string DifferenceAmong(const std::vector<float>& values, const Operation& operation,
                            const Single& single) {
  std::vector<float> x = values;
  const Status status =
      operation(TensorView::Dense(x.data(), DType::kF32, static_cast<std::int64_t>(x.size())));
  if (!status.ok()) return std::string(status.message());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float expected = single(values[i]);
    if (SameBits(x[i], expected) || (std::isnan(x[i]) && std::isnan(expected))) continue;
    return std::to_string(values[i]) + " gives " + std::to_string(x[i]) + ", not " +
           std::to_string(expected);
  }
  return "";
}

TEST_P(SingleNumbers, ActivationsHaveTheBitsOfSingleNumbers) {
  if (GetParam() == "EMU128") return;  // rounds products before sums
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  const std::vector<float> values = ManyFloats();
  const struct {
    Activation activation;
    float (*single)(float x);
  } kSingles[] = {{Activation::kSilu, arithmetic::Silu},
                  {Activation::kGelu, arithmetic::Gelu},
                  {Activation::kRelu, arithmetic::Relu},
                  {Activation::kReluSquared, arithmetic::ReluSquared},
                  {Activation::kSigmoid, arithmetic::Sigmoid}};
  for (const auto& [activation, single] : kSingles) {
    const auto activate = [&](const TensorView& x) { return backend->Activate(x, activation); };
    EXPECT_EQ(DifferenceAmong(values, activate, single), "") << static_cast<int>(activation);
  }
  std::vector<float> ups(values.size(), -3.5f);
  const TensorView up =
      TensorView::Dense(ups.data(), DType::kF32, static_cast<std::int64_t>(ups.size()));
  EXPECT_EQ(
      DifferenceAmong(
          values, [&](const TensorView& x) { return backend->GateClamped(x, up, 1.702f, 7.0f); },
          [](float x) { return arithmetic::GateClamped(x, -3.5f, 1.702f, 7.0f); }),
      "");
  EXPECT_EQ(DifferenceAmong(
                values, [&](const TensorView& x) { return backend->SoftCap(x, 30.0f); },
                [](float x) { return arithmetic::SoftCap(x, 30.0f); }),
            "");
  const XieluParams p{
      .alpha_positive = 0.8f, .alpha_negative = 1.3f, .beta = 0.5f, .epsilon = -1e-6f};
  EXPECT_EQ(DifferenceAmong(
                values, [&](const TensorView& x) { return backend->Xielu(x, p); },
                [&](float x) {
                  return arithmetic::Xielu(x, p.alpha_positive, p.alpha_negative, p.beta,
                                           p.epsilon);
                }),
            "");
}

TEST_P(SingleNumbers, DecayRatesHaveTheBitsOfSingleNumbers) {
  if (GetParam() == "EMU128") return;  // rounds products before sums
  std::vector<float> raw = ManyFloats();
  const auto count = static_cast<std::int64_t>(raw.size());
  std::vector<float> bias(raw.size()), rates(raw.size(), -0.75f), steps(raw.size());
  std::vector<float> decays(raw.size());
  const auto view = [&](std::vector<float>& x) {
    return TensorView::Dense(x.data(), DType::kF32, count);
  };
  ThreadPool pool(2);
  ASSERT_TRUE(DecayRates(pool, view(raw), view(bias), view(rates), view(steps), view(decays)).ok());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const float step = arithmetic::SoftPlus(raw[i] + 0.0f);
    if (std::isnan(step)) {
      ASSERT_TRUE(std::isnan(steps[i]) && std::isnan(decays[i])) << raw[i];
      continue;
    }
    ASSERT_TRUE(SameBits(steps[i], step)) << raw[i];
    ASSERT_TRUE(SameBits(decays[i], arithmetic::Decay(-0.75f, step))) << raw[i];
  }
}

// So does the portable target, which computes one angle at a time.
TEST_P(SingleNumbers, RotationFactorsHaveTheBitsOfSingleAngles) {
  std::vector<float> inv_freq = RandomValues(27, 6);
  inv_freq.insert(inv_freq.end(), {0.0f, 1.0f, 1e-30f, 1e30f});
  std::vector<float> cosines(inv_freq.size());
  std::vector<float> sines(inv_freq.size());
  for (const Position position : {0, 1, -1, 77, 65'535, 1'000'000, -2'147'483'647, 2'147'483'647}) {
    RotationFactors(position, inv_freq, 0.75f, cosines.data(), sines.data());
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      const auto turn = arithmetic::SinCos(position * static_cast<double>(inv_freq[i]));
      const auto cosine = static_cast<float>(turn.cosine * 0.75);
      const auto sine = static_cast<float>(turn.sine * 0.75);
      if (inv_freq[i] > 1e20f) continue;  // no meaning
      ASSERT_TRUE(SameBits(cosines[i], cosine)) << position << " × " << inv_freq[i];
      ASSERT_TRUE(SameBits(sines[i], sine)) << position << " × " << inv_freq[i];
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu::single_numbers_test
