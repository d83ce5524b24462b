#include "backend/cpu/linear/linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cpu/linear/linear_testing.h"
#include "backend/cpu/testing.h"
#include "support/internal/tile_emulator.h"
#include "tensor/scale_check.h"

namespace kvcache::cpu::linear_test {
namespace {

using kvcache::testing::TestedTargets;
using testing::ForcedTarget;
using testing::MulAdd;
using testing::RandomValues;
using testing::RandomWeights;
using testing::WeightValues;

// ---- Computes the documented chains, one value at a time

float DotFloat(const float* row, const float* x, std::int64_t inputs, MulAdd mul_add) {
  std::array<float, 16> lanes{};
  for (std::int64_t k = 0; k < inputs; ++k) {
    float& lane = lanes[static_cast<std::size_t>(k % 16)];
    lane = mul_add(row[k], x[k], lane);
  }
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

bool IsBlockType(DType dtype) {
  return InfoOf(dtype).block_size > 1;
}

std::vector<float> Reference(const std::vector<std::byte>& weights, DType dtype,
                             const std::vector<float>& x, std::int64_t inputs, std::int64_t outputs,
                             MulAdd mul_add) {
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / inputs;
  std::vector<float> y(static_cast<std::size_t>(tokens * outputs));
  for (std::int64_t n = 0; n < outputs; ++n) {
    const std::byte* const bytes = weights.data() + n * BytesOf(dtype, inputs);
    const testing::BlockRow blocks =
        IsBlockType(dtype) ? testing::ReadBlockRow(dtype, bytes, inputs) : testing::BlockRow();
    const std::vector<float> row = WeightValues({bytes, bytes + BytesOf(dtype, inputs)}, dtype);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* const column = x.data() + t * inputs;
      y[static_cast<std::size_t>(t * outputs + n)] =
          IsBlockType(dtype) ? testing::DotBlocks(blocks, column, mul_add)
                             : DotFloat(row.data(), column, inputs, mul_add);
    }
  }
  return y;
}

std::vector<float> RunLinear(Backend& backend, const std::vector<std::byte>& weights, DType dtype,
                             const std::vector<float>& x, std::int64_t inputs,
                             std::int64_t outputs) {
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / inputs;
  // The copy is exactly as large as the matrix, so reads past a row's end leave the allocation.
  std::vector<std::byte> copy = weights;
  Result<std::unique_ptr<LinearWeight>> made =
      backend.MakeLinear(TensorView::Dense(copy.data(), dtype, inputs, outputs));
  EXPECT_TRUE(made.ok()) << made.status().message();
  constexpr float kUnwritten = -12345.0f;
  std::vector<float> y(static_cast<std::size_t>(tokens * outputs) + 1, kUnwritten);
  std::vector<float> in = x;
  const LinearOutput output{made->get(), TensorView::Dense(y.data(), DType::kF32, outputs, tokens)};
  const Status status =
      backend.Linear(TensorView::Dense(in.data(), DType::kF32, inputs, tokens), {&output, 1});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(y.back(), kUnwritten);
  y.pop_back();
  return y;
}

// Returns the index of the first value whose bits differ, or -1.
std::int64_t FirstDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return static_cast<std::int64_t>(i);
  }
  return -1;
}

std::unique_ptr<Backend> MakeBackend(int threads) {
  return std::move(MakeCpuBackend({.threads = threads})).value();
}

class LinearTest : public ::testing::TestWithParam<std::tuple<DType, std::string>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const std::string& target() const { return std::get<1>(GetParam()); }
  ForcedTarget forced_{std::get<1>(GetParam())};
};

struct Shape {
  std::int64_t inputs;
  std::int64_t outputs;
};

std::vector<Shape> ShapesOf(DType dtype) {
  if (InfoOf(dtype).block_size == 64) return {{64, 1}, {64, 17}, {192, 50}, {320, 40}, {1024, 97}};
  if (InfoOf(dtype).block_size == 256) return {{256, 1}, {256, 17}, {512, 50}, {1280, 97}};
  if (IsBlockType(dtype)) {
    return {{32, 1}, {32, 17}, {64, 16}, {96, 50}, {160, 33}, {288, 40}, {1024, 97}};
  }
  return {{1, 1},   {3, 2},    {15, 5},   {16, 4},   {17, 33},  {31, 31},
          {40, 67}, {100, 32}, {256, 70}, {2100, 9}, {1001, 37}};
}

// Batches of all these sizes together use every shape of tile.
TEST_P(LinearTest, IsTheDocumentedChainForEveryBatch) {
  ASSERT_TRUE(forced_.ok());
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  for (const auto& [inputs, outputs] : ShapesOf(dtype())) {
    const auto weights = RandomWeights(dtype(), inputs * outputs, 7);
    const std::vector<float> x = RandomValues(70 * inputs, 8);
    const std::vector<float> expected =
        Reference(weights, dtype(), x, inputs, outputs, MulAdd(target()));
    for (const int tokens :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 24, 28, 33, 36, 37, 41, 42, 70}) {
      const std::vector<float> some(x.begin(), x.begin() + tokens * inputs);
      const std::vector<float> wanted(expected.begin(), expected.begin() + tokens * outputs);
      const auto y = RunLinear(*backend, weights, dtype(), some, inputs, outputs);
      ASSERT_EQ(FirstDifference(y, wanted), -1)
          << inputs << " x " << outputs << ", " << tokens << " tokens";
    }
  }
}

// The chain is close to double precision.
TEST_P(LinearTest, IsCloseToTheSumInDouble) {
  ASSERT_TRUE(forced_.ok());
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  constexpr std::int64_t kInputs = 512;
  constexpr std::int64_t kOutputs = 40;
  const auto weights = RandomWeights(dtype(), kInputs * kOutputs, 1);
  const std::vector<float> values = WeightValues(weights, dtype());
  const std::vector<float> x = RandomValues(kInputs * 20, 2);
  const auto y = RunLinear(*backend, weights, dtype(), x, kInputs, kOutputs);
  for (std::int64_t t = 0; t < 20; ++t) {
    for (std::int64_t n = 0; n < kOutputs; ++n) {
      double sum = 0.0;
      double size = 0.0;
      for (std::int64_t k = 0; k < kInputs; ++k) {
        const double product =
            static_cast<double>(values[static_cast<std::size_t>(n * kInputs + k)]) *
            static_cast<double>(x[static_cast<std::size_t>(t * kInputs + k)]);
        sum += product;
        size += std::fabs(product);
      }
      // 512 f32 steps round; inputs of 8 bits have an error of up to half of 1/127 of the largest.
      const double bound = size * (IsBlockType(dtype()) ? 0.5 / 127 * 2 : 512 * 6e-8);
      ASSERT_NEAR(y[static_cast<std::size_t>(t * kOutputs + n)], sum, bound);
    }
  }
}

// Rows and batches are larger than one step of the loops.
TEST_P(LinearTest, LongRowsInLargeBatchesAreTheSameChain) {
  ASSERT_TRUE(forced_.ok());
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr std::int64_t kOutputs = 150;
  constexpr std::int64_t kTokens = 130;
  constexpr std::int64_t kChunk = 10;
  const std::int64_t inputs = InfoOf(dtype()).block_size == 256 ? 2304
                              : IsBlockType(dtype())            ? 2112
                                                                : 2103;
  const auto weights = RandomWeights(dtype(), inputs * kOutputs, 11);
  const std::vector<float> x = RandomValues(kTokens * inputs, 12);
  const auto y = RunLinear(*backend, weights, dtype(), x, inputs, kOutputs);
  for (std::int64_t t = 0; t < kTokens; t += kChunk) {
    const std::vector<float> chunk(x.begin() + t * inputs, x.begin() + (t + kChunk) * inputs);
    const auto expected = RunLinear(*backend, weights, dtype(), chunk, inputs, kOutputs);
    const std::vector<float> actual(y.begin() + t * kOutputs, y.begin() + (t + kChunk) * kOutputs);
    ASSERT_EQ(FirstDifference(actual, expected), -1) << "tokens from " << t;
  }
}

// There are so many inputs that the batch is processed in two parts.
TEST_P(LinearTest, BatchesBeyondTheCacheAreTheSameChain) {
  ASSERT_TRUE(forced_.ok());
  if (!IsBlockType(dtype())) return;
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr std::int64_t kInputs = 12'288;
  constexpr std::int64_t kOutputs = 33;
  constexpr std::int64_t kTokens = 101;
  const auto weights = RandomWeights(dtype(), kInputs * kOutputs, 13);
  const std::vector<float> x = RandomValues(kTokens * kInputs, 14);
  const auto y = RunLinear(*backend, weights, dtype(), x, kInputs, kOutputs);
  for (const std::int64_t t : {std::int64_t{0}, std::int64_t{50}, kTokens - 1}) {
    const std::vector<float> one(x.begin() + t * kInputs, x.begin() + (t + 1) * kInputs);
    const auto expected = RunLinear(*backend, weights, dtype(), one, kInputs, kOutputs);
    const std::vector<float> actual(y.begin() + t * kOutputs, y.begin() + (t + 1) * kOutputs);
    ASSERT_EQ(FirstDifference(actual, expected), -1) << "token " << t;
  }
}

TEST_P(LinearTest, BitsDoNotDependOnThreads) {
  ASSERT_TRUE(forced_.ok());
  const std::int64_t inputs = InfoOf(dtype()).block_size == 256 ? 256 : 320;
  const std::int64_t outputs = 1500;
  const auto weights = RandomWeights(dtype(), inputs * outputs, 3);
  for (const int tokens : {1, 5, 40}) {
    const std::vector<float> x = RandomValues(tokens * inputs, 4);
    const auto one = RunLinear(*MakeBackend(1), weights, dtype(), x, inputs, outputs);
    for (const int threads : {2, 3, 8}) {
      const auto more = RunLinear(*MakeBackend(threads), weights, dtype(), x, inputs, outputs);
      ASSERT_EQ(FirstDifference(one, more), -1) << threads << " threads, " << tokens << " tokens";
    }
  }
}

// Groups of one call, each with matrices of its own from a stack, have the bits of separate calls.
TEST_P(LinearTest, GroupsOverAStackEqualSeparateCalls) {
  ASSERT_TRUE(forced_.ok());
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr std::int64_t kMatrices = 3;
  const auto [inputs, outputs] = ShapesOf(dtype()).back();
  auto stack = RandomWeights(dtype(), inputs * outputs * kMatrices, 21);
  const auto bytes = static_cast<std::ptrdiff_t>(BytesOf(dtype(), inputs * outputs));
  const auto weight =
      backend->MakeLinear(TensorView::Dense(stack.data(), dtype(), inputs, outputs, kMatrices));
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  EXPECT_EQ((*weight)->matrices(), kMatrices);
  struct Item {
    std::vector<float> x, y0, y1;
    std::array<LinearOutput, 2> outputs;
  };
  const int batches[] = {1, 0, 5, 33, 2, 64};
  std::vector<Item> items(std::size(batches));
  std::vector<LinearGroup> groups;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    item.x = RandomValues(batches[i] * inputs, static_cast<std::uint32_t>(22 + i));
    item.y0.resize(static_cast<std::size_t>(batches[i] * outputs));
    item.y1 = item.y0;
    const auto view = [&](std::vector<float>& v, std::int64_t width) {
      return TensorView::Dense(v.data(), DType::kF32, width, batches[i]);
    };
    const auto matrix = static_cast<std::int64_t>(i % kMatrices);
    item.outputs[0] = {weight->get(), view(item.y0, outputs), matrix};
    item.outputs[1] = {weight->get(), view(item.y1, outputs), kMatrices - 1 - matrix};
    groups.push_back({view(item.x, inputs), item.outputs});
  }
  const Status status = backend->LinearGroups(groups);
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (batches[i] == 0) continue;
    for (const auto& [y, output] : {std::pair(&items[i].y0, &items[i].outputs[0]),
                                    std::pair(&items[i].y1, &items[i].outputs[1])}) {
      const auto* const begin = stack.data() + output->matrix * bytes;
      const std::vector<std::byte> one(begin, begin + bytes);
      const auto alone = RunLinear(*backend, one, dtype(), items[i].x, inputs, outputs);
      ASSERT_EQ(FirstDifference(*y, alone), -1) << "group " << i << ", matrix " << output->matrix;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TypesAndTargets, LinearTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kWeightTypes),
                                            ::testing::ValuesIn(TestedTargets())),
                         [](const auto& instance) {
                           return std::string(InfoOf(std::get<0>(instance.param)).name) + "_" +
                                  std::get<1>(instance.param);
                         });

// Mixes extreme inputs with ordinary ones: zeros, huge and subnormal values, in every span of a
// chain. Weights of all-ones bits have the most negative and the largest scales and quants.
TEST(LinearBlocksTest, EdgeValues) {
  constexpr std::int64_t kInputs = 768;
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                            DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kMXFP4}) {
    auto weights = RandomWeights(dtype, kInputs * 16, 5);
    const auto block_bytes = static_cast<std::size_t>(InfoOf(dtype).block_bytes);
    const std::size_t bits_at = dtype == DType::kQ6_K ? 0 : 4;
    const std::size_t bits_end = dtype == DType::kQ6_K ? 208 : block_bytes;
    for (std::size_t i = bits_at; i < bits_end; ++i) {
      weights[i] = dtype == DType::kQ8_0 ? std::byte{0x80} : std::byte{0xff};
    }
    std::vector<float> x = RandomValues(kInputs * 3, 6);
    std::fill(x.begin(), x.begin() + 256, 0.0f);
    std::fill(x.begin() + kInputs, x.begin() + kInputs + 256, -1e30f);
    std::fill(x.begin() + 2 * kInputs, x.begin() + 2 * kInputs + 256, 1e-42f);
    for (const std::string& target : TestedTargets()) {
      const ForcedTarget forced(target);
      const auto expected = Reference(weights, dtype, x, kInputs, 16, MulAdd(target));
      ASSERT_TRUE(forced.ok());
      const auto y = RunLinear(*MakeBackend(1), weights, dtype, x, kInputs, 16);
      EXPECT_EQ(FirstDifference(y, expected), -1) << InfoOf(dtype).name << " " << target;
    }
  }
}

// A NaN must survive quantising at any place in its span, and must not reach other tokens.
// Subnormal values, whose scale has no inverse, become zeros.
TEST(LinearBlocksTest, NotFiniteValuesStayNotFinite) {
  constexpr std::int64_t kInputs = 512;
  constexpr std::int64_t kOutputs = 16;
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_1, DType::kQ4_K, DType::kQ6_K}) {
    const auto weights = RandomWeights(dtype, kInputs * kOutputs, 5);
    for (const std::string& target : TestedTargets()) {
      const ForcedTarget forced(target);
      ASSERT_TRUE(forced.ok());
      const auto backend = MakeBackend(1);
      const std::vector<float> plain = RandomValues(kInputs * 3, 6);
      const auto expected = RunLinear(*backend, weights, dtype, plain, kInputs, kOutputs);
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -INFINITY}) {
        for (const std::size_t at : {0, 17, 31, 256, 511}) {
          std::vector<float> x = plain;
          x[kInputs + at] = bad;
          const auto y = RunLinear(*backend, weights, dtype, x, kInputs, kOutputs);
          for (std::size_t i = 0; i < y.size(); ++i) {
            const bool hit = i / kOutputs == 1;
            EXPECT_TRUE(hit ? std::isnan(y[i]) : y[i] == expected[i])
                << InfoOf(dtype).name << " " << target << ": " << bad << " at " << at << ", y[" << i
                << "] is " << y[i];
          }
        }
      }
      std::vector<float> tiny = plain;
      for (float& value : tiny) value *= 1e-39f;
      for (const float y : RunLinear(*backend, weights, dtype, tiny, kInputs, kOutputs)) {
        EXPECT_EQ(y, 0.0f) << InfoOf(dtype).name << " " << target;
      }
    }
  }
}

// For every exponent of an MXFP4 block the scale is exactly that power of two.
TEST(LinearBlocksTest, EveryPowerOfMxfp4) {
  constexpr std::int64_t kInputs = 32;
  constexpr std::int64_t kOutputs = kLargestMxfp4Exponent + 1;
  auto weights = RandomWeights(DType::kMXFP4, kInputs * kOutputs, 5);
  for (std::size_t e = 0; e < kOutputs; ++e) weights[17 * e] = static_cast<std::byte>(e);
  std::vector<float> x = RandomValues(kInputs * 3, 6);
  for (std::size_t i = 0; i < kInputs; ++i) {
    x[i] *= 0x1p-100f;
    x[kInputs + i] *= 0x1p100f;
  }
  for (const std::string& target : TestedTargets()) {
    const ForcedTarget forced(target);
    const auto expected = Reference(weights, DType::kMXFP4, x, kInputs, kOutputs, MulAdd(target));
    ASSERT_TRUE(forced.ok());
    const auto y = RunLinear(*MakeBackend(1), weights, DType::kMXFP4, x, kInputs, kOutputs);
    EXPECT_EQ(FirstDifference(y, expected), -1) << target;
  }
}

TEST(LinearBlocksTest, AScaleThatIsNaNMakesItsRowNaN) {
  constexpr std::int64_t kInputs = 96;
  constexpr std::int64_t kOutputs = 20;
  auto weights = RandomWeights(DType::kQ8_0, kInputs * kOutputs, 5);
  const std::uint16_t nan = 0x7e00;
  std::memcpy(weights.data() + BytesOf(DType::kQ8_0, 7 * kInputs), &nan, sizeof(nan));
  for (const std::string& target : TestedTargets()) {
    if (target == "EMU128") continue;  // Highway's conversion of f16 knows no NaN there
    const ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok());
    const auto y = RunLinear(*MakeBackend(1), weights, DType::kQ8_0, RandomValues(kInputs * 7, 6),
                             kInputs, kOutputs);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i % kOutputs == 7);
  }
}

// One call has outputs of several types and widths.
TEST(LinearCallTest, ManyOutputsOfOneInput) {
  const std::unique_ptr<Backend> backend = MakeBackend(3);
  constexpr std::int64_t kInputs = 256;
  const std::array<DType, 7> types = {DType::kQ8_0, DType::kF16,  DType::kQ4_K, DType::kF32,
                                      DType::kBF16, DType::kQ6_K, DType::kQ5_1};
  for (const int tokens : {1, 30}) {
    std::vector<float> x = RandomValues(kInputs * tokens, 9);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<std::unique_ptr<LinearWeight>> weights;
    std::vector<std::vector<float>> y;
    std::vector<LinearOutput> outputs;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const auto rows = static_cast<std::int64_t>(10 + 60 * i);
      bytes.push_back(RandomWeights(types[i], kInputs * rows, static_cast<std::uint32_t>(i)));
      weights.push_back(std::move(backend->MakeLinear(TensorView::Dense(bytes.back().data(),
                                                                        types[i], kInputs, rows)))
                            .value());
      EXPECT_EQ(weights.back()->inputs(), kInputs);
      EXPECT_EQ(weights.back()->outputs(), rows);
      EXPECT_EQ(weights.back()->dtype(), types[i]);
      EXPECT_EQ(weights.back()->owned_bytes() > 0, IsBlockType(types[i]));
      y.emplace_back(static_cast<std::size_t>(rows * tokens));
      outputs.push_back(
          {weights.back().get(), TensorView::Dense(y.back().data(), DType::kF32, rows, tokens)});
    }
    const Status status =
        backend->Linear(TensorView::Dense(x.data(), DType::kF32, kInputs, tokens), outputs);
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < types.size(); ++i) {
      const auto alone = RunLinear(*backend, bytes[i], types[i], x, kInputs, weights[i]->outputs());
      EXPECT_EQ(FirstDifference(y[i], alone), -1) << i;
    }
  }
}

TEST(LinearCallTest, BlockWeightsTakeTheirFileSize) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                            DType::kQ4_K, DType::kQ5_K, DType::kMXFP4}) {
    auto bytes = RandomWeights(dtype, 512 * 64, 1);
    const auto weight = backend->MakeLinear(TensorView::Dense(bytes.data(), dtype, 512, 64));
    ASSERT_TRUE(weight.ok());
    EXPECT_EQ((*weight)->owned_bytes(), bytes.size()) << InfoOf(dtype).name;
  }
  // Panels are whole cache lines: 16 rows × 210 bytes are 52.5 lines.
  auto bytes = RandomWeights(DType::kQ6_K, 512 * 64, 1);
  const auto weight = backend->MakeLinear(TensorView::Dense(bytes.data(), DType::kQ6_K, 512, 64));
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ((*weight)->owned_bytes(), bytes.size() / 210 * 212);
}

// ---- Errors name both sides

struct BadCall {
  const char* what;
  std::int64_t x_inputs, x_tokens, y_outputs, y_tokens;
  DType y_dtype;
  std::vector<std::string> names;
};

TEST(LinearCallTest, MismatchesNameBothSides) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(64 * 64);
  const auto weight =
      std::move(backend->MakeLinear(TensorView::Dense(memory.data(), DType::kF32, 64, 24))).value();
  const std::vector<BadCall> cases = {
      {"inputs", 63, 2, 24, 2, DType::kF32, {"inputs", "weight [64, 24]", "x [63, 2]"}},
      {"outputs", 64, 2, 23, 2, DType::kF32, {"outputs", "weight [64, 24]", "y [23, 2]"}},
      {"batch", 64, 2, 24, 3, DType::kF32, {"batches", "x [64, 2]", "y [24, 3]"}},
      {"type", 64, 2, 24, 2, DType::kF16, {"dense f32", "y [24, 2]"}},
  };
  for (const BadCall& c : cases) {
    const LinearOutput output{weight.get(),
                              TensorView::Dense(memory.data(), c.y_dtype, c.y_outputs, c.y_tokens)};
    const Status status = backend->Linear(
        TensorView::Dense(memory.data(), DType::kF32, c.x_inputs, c.x_tokens), {&output, 1});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.what;
    for (const std::string& name : c.names) {
      EXPECT_NE(status.message().find(name), std::string::npos)
          << c.what << ": " << status.message();
    }
  }
}

TEST(LinearCallTest, RefusesAMatrixThatTheStackLacks) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<float> memory(2 * 8 * 4);
  const auto weight =
      std::move(backend->MakeLinear(TensorView::Dense(memory.data(), DType::kF32, 8, 4, 2)))
          .value();
  const LinearOutput output{weight.get(), TensorView::Dense(memory.data(), DType::kF32, 4, 1), 2};
  EXPECT_EQ(
      backend->Linear(TensorView::Dense(memory.data(), DType::kF32, 8, 1), {&output, 1}).message(),
      "linear: matrix 2 of a stack of 2: weight [8, 4], x [8, 1], y [4, 1]");
}

TEST(LinearCallTest, RefusesUnsupportedWeights) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  std::vector<std::byte> memory(1 << 16);
  const auto code = [&](const TensorView& w) { return backend->MakeLinear(w).status().code(); };
  EXPECT_EQ(code(TensorView::Dense(memory.data(), DType::kI8, 32, 4)), StatusCode::kUnsupported);
  EXPECT_EQ(code(TensorView::Dense(memory.data(), DType::kQ8_0, 48, 4)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TensorView::Dense(memory.data(), DType::kQ4_K, 288, 4)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TensorView::Dense(memory.data(), DType::kF32, 0, 4)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TensorView::Dense(memory.data(), DType::kF32, 32, 4, 2, 2)),
            StatusCode::kInvalidArgument);
  TensorView apart = TensorView::Dense(memory.data(), DType::kF32, 32, 4, 2);
  apart.stride_bytes[2] += 4;
  EXPECT_EQ(code(apart), StatusCode::kInvalidArgument);
  TensorView strided = TensorView::Dense(memory.data(), DType::kF32, 32, 4);
  strided.stride_bytes[1] += 4;
  EXPECT_EQ(code(strided), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache::cpu::linear_test
