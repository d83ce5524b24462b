#include "backend/cpu/ops/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/ops/rope.h"
#include "backend/cpu/testing.h"
#include "base/arithmetic/angles.h"

namespace kvcache::cpu::elementwise_test {
namespace {

using testing::ForcedTarget;
using testing::MulAdd;
using testing::RandomValues;
using testing::RandomWeights;
using testing::WeightValues;

constexpr std::array<std::int64_t, 12> kWidths = {1, 3, 4, 15, 16, 17, 48, 63, 64, 128, 100, 1000};

std::unique_ptr<Backend> MakeBackend(int threads) {
  return std::move(MakeCpuBackend({.threads = threads})).value();
}

bool SameBits(const float* a, const float* b, std::int64_t count) {
  return count == 0 || std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

class ElementwiseTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(forced_.ok()); }
  ForcedTarget forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, ElementwiseTest, ::testing::ValuesIn(CpuTargetNames()),
                         [](const auto& instance) { return instance.param; });

// ---- Embed

TEST_P(ElementwiseTest, EmbedWidensRowsOfEveryWeightType) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  for (const DType dtype : testing::kWeightTypes) {
    for (const std::int64_t width : {32, 33, 47, 96, 256, 2048}) {
      if (width % InfoOf(dtype).block_size != 0) continue;
      constexpr std::int64_t kRows = 9;
      auto table = RandomWeights(dtype, width * kRows, 3);
      const std::vector<float> values = WeightValues(table, dtype);
      const std::vector<std::int32_t> tokens = {8, 0, 3, 3, 1};
      std::vector<float> y(static_cast<std::size_t>(width) * tokens.size());
      const Status status =
          backend->Embed(TensorView::Dense(table.data(), dtype, width, kRows), tokens,
                         TensorView::Dense(y.data(), DType::kF32, width, 5));
      ASSERT_TRUE(status.ok()) << status.message();
      for (std::size_t i = 0; i < y.size(); ++i) {
        const std::int64_t row = tokens[i / static_cast<std::size_t>(width)];
        const float expected =
            values[static_cast<std::size_t>(row * width + static_cast<std::int64_t>(i) % width)];
        ASSERT_TRUE(SameBits(&y[i], &expected, 1)) << InfoOf(dtype).name << " " << i;
      }
    }
  }
}

TEST(EmbedTest, NamesTheTokenThatIsNotInTheTable) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(64);
  for (const std::int32_t bad : {-1, 4}) {
    const std::vector<std::int32_t> tokens = {0, bad};
    const Status status =
        backend->Embed(TensorView::Dense(memory.data(), DType::kF32, 8, 4), tokens,
                       TensorView::Dense(memory.data() + 32, DType::kF32, 8, 2));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "embed: token at index 1 is " + std::to_string(bad) +
                                    "; must be one of the table's 4 rows");
  }
}

// ---- RmsNorm

float SumOfSquares(const float* x, std::int64_t width, MulAdd mul_add) {
  std::array<float, 64> lanes{};
  for (std::int64_t i = 0; i < width; ++i) {
    float& lane = lanes[static_cast<std::size_t>(i % 64)];
    lane = mul_add(x[i], x[i], lane);
  }
  for (std::size_t half = 32; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

TEST_P(ElementwiseTest, RmsNormIsTheDocumentedChain) {
  const MulAdd mul_add(GetParam());
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr float kEpsilon = 1e-5f;
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t tokens : {1, 3, 100}) {
      std::vector<float> x = RandomValues(width * tokens, 1);
      std::vector<float> weight = RandomValues(width, 2);
      std::vector<float> expected = x;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const float mean =
            SumOfSquares(x.data() + t * width, width, mul_add) / static_cast<float>(width);
        const float scale = 1.0f / std::sqrt(mean + kEpsilon);
        for (std::int64_t i = 0; i < width; ++i) {
          float& value = expected[static_cast<std::size_t>(t * width + i)];
          value = value * scale * weight[static_cast<std::size_t>(i)];
        }
      }
      const TensorView view = TensorView::Dense(x.data(), DType::kF32, width, tokens);
      const Status status = backend->RmsNorm(
          view, TensorView::Dense(weight.data(), DType::kF32, width), kEpsilon, view);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(SameBits(x.data(), expected.data(), width * tokens)) << width;
    }
  }
}

TEST(RmsNormTest, MismatchesNameBothSides) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(64);
  const auto view = [&](std::int64_t a, std::int64_t b) {
    return TensorView::Dense(memory.data(), DType::kF32, a, b);
  };
  const Status weight = backend->RmsNorm(view(8, 2), view(7, 1), 1e-5f, view(8, 2));
  EXPECT_EQ(weight.message(),
            "rms norm: weight is f32 [7, 1]; must be dense f32 with the width of x, f32 [8, 2]");
  const Status shape = backend->RmsNorm(view(8, 2), view(8, 1), 1e-5f, view(8, 3));
  EXPECT_EQ(shape.message(),
            "rms norm: x is f32 [8, 2] and y is f32 [8, 3]; must be f32 rows of one shape");
}

TEST_P(ElementwiseTest, CenterSubtractsTheMean) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  for (const std::int64_t width : kWidths) {
    std::vector<float> x = RandomValues(width * 3, 3);
    std::vector<float> expected = x;
    for (std::int64_t t = 0; t < 3; ++t) {
      std::array<float, 64> lanes{};
      float* const row = expected.data() + t * width;
      for (std::int64_t i = 0; i < width; ++i) lanes[static_cast<std::size_t>(i % 64)] += row[i];
      for (std::size_t half = 32; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
      }
      const float mean = lanes[0] / static_cast<float>(width);
      for (std::int64_t i = 0; i < width; ++i) row[i] -= mean;
    }
    const TensorView view = TensorView::Dense(x.data(), DType::kF32, width, 3);
    ASSERT_TRUE(backend->Center(view, view).ok());
    ASSERT_TRUE(SameBits(x.data(), expected.data(), width * 3)) << width;
  }
}

TEST_P(ElementwiseTest, XieluIsNearItsDefinition) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  const XieluParams p{
      .alpha_positive = 0.8f, .alpha_negative = 1.3f, .beta = 0.5f, .epsilon = -1e-6f};
  std::vector<float> x = RandomValues(103, 4);
  const std::vector<float> before = x;
  ASSERT_TRUE(backend->Xielu(TensorView::Dense(x.data(), DType::kF32, 103), p).ok());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = before[i];
    const double bent = std::expm1(std::min(v, double{p.epsilon})) - v;
    const double expected =
        p.beta * v + (v > 0 ? p.alpha_positive * v * v : p.alpha_negative * bent);
    EXPECT_NEAR(x[i], expected, 1e-6 * (1.0 + std::abs(v))) << v;
  }
}

// ---- Rope

// Rotates a pair as defined in rope.h and elementwise_kernels.h.
void RotatePair(float& a, float& b, Position position, float inv_freq, float magnitude,
                MulAdd mul_add) {
  const double angle = static_cast<double>(position) * static_cast<double>(inv_freq);
  const arithmetic::SineCosine turn = arithmetic::SinCos(angle);
  const auto cosine = static_cast<float>(turn.cosine * static_cast<double>(magnitude));
  const auto sine = static_cast<float>(turn.sine * static_cast<double>(magnitude));
  const float rotated = mul_add(a, cosine, -(b * sine));
  b = mul_add(a, sine, b * cosine);
  a = rotated;
}

TEST_P(ElementwiseTest, RopeRotatesEachPairByItsAngle) {
  const MulAdd mul_add(GetParam());
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr std::int64_t kHeads = 3;
  for (const auto pairing : {RopeParams::Pairing::kInterleaved, RopeParams::Pairing::kHalves}) {
    for (const int dims : {0, 2, 6, 24, 26, 64, 96}) {
      for (const std::int64_t tokens : {1, 40}) {
        const std::int64_t head_dim = dims + (dims % 4);
        std::vector<float> inv_freq;
        for (int i = 0; i < dims / 2; ++i) {
          inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / dims)));
        }
        const RopeParams rope{
            .pairing = pairing, .dims = dims, .inv_freq = inv_freq, .magnitude = 1.25f};
        std::vector<Position> positions;
        for (int t = 0; t < tokens; ++t) positions.push_back(t * 7919 % 100'000);
        std::vector<float> x = RandomValues(head_dim * kHeads * tokens, 5);
        std::vector<float> expected = x;
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t h = 0; h < kHeads; ++h) {
            float* const head = expected.data() + (t * kHeads + h) * head_dim;
            for (int i = 0; i < dims / 2; ++i) {
              const bool halves = pairing == RopeParams::Pairing::kHalves;
              RotatePair(head[halves ? i : 2 * i], head[halves ? i + dims / 2 : 2 * i + 1],
                         positions[static_cast<std::size_t>(t)],
                         inv_freq[static_cast<std::size_t>(i)], rope.magnitude, mul_add);
            }
          }
        }
        const Status status = backend->Rope(
            TensorView::Dense(x.data(), DType::kF32, head_dim, kHeads, tokens), positions, rope);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(SameBits(x.data(), expected.data(), static_cast<std::int64_t>(x.size())))
            << dims << " dims, " << tokens << " tokens";
      }
    }
  }
}

TEST(RopeTest, TablesFollowTheirArguments) {
  ThreadPool pool(1);
  RopeTables tables;
  const std::vector<float> full = {1.0f, 0.5f};
  const std::vector<float> window = {1.0f, 0.25f};
  for (const Position position : {1, 2, 3}) {
    for (const auto* inv_freq : {&full, &window, &full}) {
      const RopeParams rope{.dims = 4, .inv_freq = *inv_freq};
      const std::vector<Position> positions = {position};
      const RopeTables::Table& table = tables.Find(pool, positions, rope);
      ASSERT_EQ(table.cosines.size(), 2u);
      EXPECT_EQ(table.cosines[1],
                static_cast<float>(arithmetic::SinCos(position * double{(*inv_freq)[1]}).cosine));
      EXPECT_EQ(&tables.Find(pool, positions, rope), &table);  // not computed again
    }
  }
}

TEST(RopeTest, MismatchesNameBothSides) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(64);
  const std::vector<float> inv_freq = {1.0f, 0.1f};
  const TensorView x = TensorView::Dense(memory.data(), DType::kF32, 8, 2, 3);
  const auto message = [&](std::size_t tokens, int dims) {
    const std::vector<Position> positions(tokens, 0);
    return backend->Rope(x, positions, {.dims = dims, .inv_freq = inv_freq}).message();
  };
  EXPECT_EQ(message(2, 4), "rope: positions has 2 entries; must have one for each of 3 tokens");
  EXPECT_EQ(message(3, 10),
            "rope: dims is 10 and first is 0; dims must be even, and the range within the 8 values "
            "of a head");
  EXPECT_EQ(message(3, 6), "rope: inv_freq has 2 values; must have dims / 2, which is 3");
}

// ---- Activations, gates, caps, Add

struct NamedActivation {
  const char* name;
  Activation activation;
  double (*definition)(double x);
};
constexpr NamedActivation kActivations[] = {
    {"silu", Activation::kSilu, [](double x) { return x / (1.0 + std::exp(-x)); }},
    // This is another form of GELU than the kernel's.
    {"gelu", Activation::kGelu,
     [](double x) {
       return 0.5 * x * (1.0 + std::tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)));
     }},
    {"relu", Activation::kRelu, [](double x) { return std::max(x, 0.0); }},
    {"relu squared", Activation::kReluSquared,
     [](double x) { return std::max(x, 0.0) * std::max(x, 0.0); }},
    {"sigmoid", Activation::kSigmoid, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }},
};

// Returns values of all magnitudes, including those where exponentials overflow.
std::vector<float> EdgeValues() {
  std::vector<float> values = RandomValues(61, 1);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= static_cast<float>(i);
  for (const float edge : {0.0f, -0.0f, 88.5f, -88.5f, 1e18f, -1e18f}) values.push_back(edge);
  return values;
}

// Runs `operation` on many values x, checks that all results are equal, and returns one.
template <typename Operation>
float SameEverywhere(float x, const Operation& operation) {
  constexpr std::int64_t kCount = 9'001;  // several tasks, and a tail in the last
  std::vector<float> values(kCount, x);
  const Status status = operation(TensorView::Dense(values.data(), DType::kF32, kCount));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(std::ranges::all_of(values, [&](float y) { return SameBits(&y, &values[0], 1); }))
      << x;
  return values[0];
}

// Far below 0 the exact results underflow; the kernels return the result of their clamped
// exponential.
double Tolerance(double expected, float x) {
  return std::fabs(expected) * 2e-6 + 1e-6 * (x < -80.0f) + 1e-9;
}

TEST_P(ElementwiseTest, ActivationsAreCloseAndDoNotDependOnTheLane) {
  const std::unique_ptr<Backend> backend = MakeBackend(3);
  std::vector<float> ups(9'001, 0.75f);
  const TensorView up = TensorView::Dense(ups.data(), DType::kF32, 9'001);
  for (const NamedActivation& a : kActivations) {
    for (const float x : EdgeValues()) {
      SCOPED_TRACE(std::string(a.name) + " of " + std::to_string(x));
      const double expected = a.definition(x);
      const float activated = SameEverywhere(
          x, [&](const TensorView& view) { return backend->Activate(view, a.activation); });
      EXPECT_NEAR(activated, expected, Tolerance(expected, x));
      const float gated = SameEverywhere(
          x, [&](const TensorView& view) { return backend->Gate(view, up, a.activation); });
      const float product = activated * 0.75f;
      EXPECT_TRUE(SameBits(&gated, &product, 1)) << gated << " for " << product;
    }
  }
}

TEST_P(ElementwiseTest, ClampedGates) {
  const std::unique_ptr<Backend> backend = MakeBackend(3);
  constexpr double kAlpha = 1.702;
  constexpr double kLimit = 7.0;
  for (const float up : {0.75f, -9.0f, 100.0f, -1.0f}) {
    std::vector<float> ups(9'001, up);
    const TensorView view = TensorView::Dense(ups.data(), DType::kF32, 9'001);
    for (const float x : EdgeValues()) {
      const float got = SameEverywhere(x, [&](const TensorView& gate) {
        return backend->GateClamped(gate, view, 1.702f, 7.0f);
      });
      const double g = std::min<double>(x, kLimit);
      const double u = std::clamp<double>(up, -kLimit, kLimit);
      const double expected = g / (1.0 + std::exp(-kAlpha * g)) * (u + 1.0);
      EXPECT_NEAR(got, expected, Tolerance(expected, x) * 8.0) << x << " " << up;
    }
  }
}

// A minimum of a number and a NaN is the number in some instruction sets.
TEST_P(ElementwiseTest, ANaNStaysANaNAndAZeroKeepsItsSign) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  const auto view = [](std::vector<float>& x) {
    return TensorView::Dense(x.data(), DType::kF32, 3);
  };
  const std::vector<float> values = {std::nanf(""), -0.0f, 1.0f};
  for (const NamedActivation& a : kActivations) {
    std::vector<float> x = values;
    ASSERT_TRUE(backend->Activate(view(x), a.activation).ok());
    EXPECT_TRUE(std::isnan(x[0])) << a.name;
    EXPECT_TRUE(a.activation != Activation::kRelu || std::signbit(x[1])) << x[1];
  }
  std::vector<float> gate = values, up = {1.0f, std::nanf(""), 1.0f}, x = values;
  ASSERT_TRUE(backend->GateClamped(view(gate), view(up), 1.702f, 7.0f).ok());
  EXPECT_TRUE(std::isnan(gate[0]) && std::isnan(gate[1]) && !std::isnan(gate[2]));
  ASSERT_TRUE(backend->Xielu(view(x), {1.0f, 1.0f, 1.0f, -1e-6f}).ok());
  EXPECT_TRUE(std::isnan(x[0]) && !std::isnan(x[1]));
}

TEST_P(ElementwiseTest, SoftCapsAndFactors) {
  const std::unique_ptr<Backend> backend = MakeBackend(3);
  for (const float cap : {1.0f, 30.0f, 50.0f}) {
    for (const float x : EdgeValues()) {
      const float capped =
          SameEverywhere(x, [&](const TensorView& view) { return backend->SoftCap(view, cap); });
      const double expected = double{cap} * std::tanh(double{x} / double{cap});
      EXPECT_NEAR(capped, expected, std::fabs(expected) * 1e-6) << x;
      const float scaled =
          SameEverywhere(x, [&](const TensorView& view) { return backend->Scale(view, cap); });
      EXPECT_EQ(scaled, x * cap);
    }
  }
}

TEST_P(ElementwiseTest, AddAdds) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  for (const std::int64_t width : kWidths) {
    std::vector<float> x = RandomValues(width * 40, 1);
    std::vector<float> y = RandomValues(width * 40, 2);
    std::vector<float> expected;
    for (std::size_t i = 0; i < x.size(); ++i) expected.push_back(x[i] + y[i]);
    const Status status = backend->Add(TensorView::Dense(x.data(), DType::kF32, width, 40),
                                       TensorView::Dense(y.data(), DType::kF32, width, 40));
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(SameBits(x.data(), expected.data(), width * 40));
  }
}

TEST_P(ElementwiseTest, MultiplyMultipliesValuesOrColumns) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr std::int64_t kTokens = 40;
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t each : {width, std::int64_t{1}}) {
      std::vector<float> x = RandomValues(width * kTokens, 1);
      std::vector<float> y = RandomValues(each * kTokens, 2);
      std::vector<float> expected;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t column = i / static_cast<std::size_t>(width);
        expected.push_back(x[i] * y[each == 1 ? column : i]);
      }
      const Status status =
          backend->Multiply(TensorView::Dense(x.data(), DType::kF32, width, kTokens),
                            TensorView::Dense(y.data(), DType::kF32, each, kTokens));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(SameBits(x.data(), expected.data(), width * kTokens)) << width << " " << each;
    }
  }
}

TEST_P(ElementwiseTest, BiasesAndFactorsAreByColumn) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr std::int64_t kTokens = 50;
  for (const std::int64_t width : kWidths) {
    std::vector<float> x = RandomValues(width * kTokens, 1);
    std::vector<float> bias = RandomValues(width, 2);
    const std::vector<float> factors = RandomValues(kTokens, 3);
    std::vector<float> expected;
    for (std::int64_t i = 0; i < width * kTokens; ++i) {
      const float sum = x[static_cast<std::size_t>(i)] + bias[static_cast<std::size_t>(i % width)];
      expected.push_back(factors[static_cast<std::size_t>(i / width)] * sum);
    }
    const TensorView view = TensorView::Dense(x.data(), DType::kF32, width, kTokens);
    ASSERT_TRUE(backend->AddBias(view, TensorView::Dense(bias.data(), DType::kF32, width)).ok());
    ASSERT_TRUE(backend->ScaleColumns(view, factors).ok());
    ASSERT_TRUE(SameBits(x.data(), expected.data(), width * kTokens)) << width;
  }
}

TEST(AddBiasTest, MismatchesNameBothSides) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(64);
  const TensorView x = TensorView::Dense(memory.data(), DType::kF32, 8, 2);
  EXPECT_EQ(backend->AddBias(x, TensorView::Dense(memory.data(), DType::kF32, 7)).message(),
            "add bias: bias is f32 [7, 1] and x is f32 [8, 2]; must be f32 of one width");
  EXPECT_EQ(backend->ScaleColumns(x, std::vector<float>(3)).message(),
            "scale columns: there are 3 factors; must be one per column of x, f32 [8, 2]");
}

TEST(AddTest, MismatchesNameBothSides) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(64);
  const TensorView a = TensorView::Dense(memory.data(), DType::kF32, 8, 2);
  const TensorView b = TensorView::Dense(memory.data(), DType::kF32, 8, 3);
  for (const Status& status : {backend->Add(a, b), backend->Gate(a, b, Activation::kSilu),
                               backend->GateClamped(a, b, 1.0f, 7.0f)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("f32 [8, 2] and f32 [8, 3]"), std::string::npos);
  }
}

TEST(SoftCapTest, RefusesCapsThatAreNotPositiveAndViewsThatAreNotDense) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(64);
  const TensorView x = TensorView::Dense(memory.data(), DType::kF32, 8, 2);
  EXPECT_EQ(backend->SoftCap(x, 0.0f).message(), "soft cap: cap is 0.000000; must be positive");
  TensorView gaps = x;
  gaps.stride_bytes[1] = 64;
  for (const Status& status : {backend->Activate(gaps, Activation::kRelu),
                               backend->Scale(gaps, 2.0f), backend->SoftCap(gaps, 1.0f)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("tensor is f32 [8, 2]; must be dense f32"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvcache::cpu::elementwise_test
