#include "backend/cpu/ops/recurrence.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/ops/recurrence_testing.h"
#include "backend/cpu/testing.h"

namespace kvcache::cpu::recurrence_test {
namespace {

using testing::ForcedTarget;
using testing::kScanShapes;
using testing::kSkip;
using testing::MulAdd;
using testing::RandomValues;
using testing::SameBits;
using testing::ScanData;
using testing::ScanShape;
using testing::Segments;
using testing::Size;
using testing::Values;
using testing::View;

class RecurrenceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(forced_.ok()); }
  ForcedTarget forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, RecurrenceTest, ::testing::ValuesIn(CpuTargetNames()),
                         [](const auto& instance) { return instance.param; });

// ---- Convolution

struct ConvShape {
  std::int64_t channels, steps, sequences, tokens;
  bool bias;
};

constexpr ConvShape kConvShapes[] = {{1, 2, 1, 1, false},   {15, 3, 1, 7, true},
                                     {64, 4, 3, 1, false},  {65, 4, 2, 3, true},
                                     {100, 3, 3, 2, false}, {193, 32, 2, 40, true}};

// A convolution and its result, computed by the chain of docs/design/exactness.md.
struct Conv {
  Conv(const ConvShape& of, const MulAdd& mul_add)
      : shape(of),
        x(RandomValues(of.channels * of.sequences * of.tokens, 1)),
        taps(RandomValues(of.steps * of.channels, 2)),
        bias(RandomValues(of.channels, 3)),
        before(RandomValues((of.steps - 1) * of.channels * of.sequences, 4)),
        after(before.size()),
        y(x.size()) {
    for (std::int64_t s = 0; s < of.sequences; ++s) {
      for (std::int64_t c = 0; c < of.channels; ++c) Solve(s, c, mul_add);
    }
  }

  float Input(std::int64_t s, std::int64_t c, std::int64_t t) const {
    const std::int64_t kept = shape.steps - 1;
    return t < 0 ? before[Size((s * shape.channels + c) * kept + kept + t)]
                 : x[Size((s * shape.tokens + t) * shape.channels + c)];
  }

  void Solve(std::int64_t s, std::int64_t c, const MulAdd& mul_add) {
    const std::int64_t kept = shape.steps - 1;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      float sum = 0.0f;
      for (std::int64_t j = 0; j <= kept; ++j) {
        sum = mul_add(taps[Size(c * shape.steps + j)], Input(s, c, t - kept + j), sum);
      }
      if (shape.bias) sum += bias[Size(c)];
      y[Size((s * shape.tokens + t) * shape.channels + c)] = sum;
    }
    for (std::int64_t i = 0; i < kept; ++i) {
      after[Size((s * shape.channels + c) * kept + i)] = Input(s, c, shape.tokens - kept + i);
    }
  }

  ConvShape shape;
  Values x, taps, bias, before, after, y;
};

TEST_P(RecurrenceTest, ConvolutionIsTheDocumentedChain) {
  for (const ConvShape& shape : kConvShapes) {
    SCOPED_TRACE(shape.channels);
    Conv conv(shape, MulAdd(GetParam()));
    ThreadPool pool(2);
    Values y(conv.y.size());
    Values after(conv.after.size());
    ConvTaps taps{View(conv.taps, shape.steps, shape.channels)};
    if (shape.bias) taps.bias = View(conv.bias, shape.channels);
    const std::int64_t batch = shape.sequences * shape.tokens;
    const Status status =
        ShortConv(pool, View(conv.x, shape.channels, batch), taps,
                  Segments::Even(conv.before, after, shape.sequences, shape.tokens)
                      .View(shape.channels * (shape.steps - 1)),
                  View(y, shape.channels, batch));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(SameBits(y, conv.y));
    EXPECT_TRUE(SameBits(after, conv.after));
  }
}

// Passes of any size give the outputs and the last inputs of a single pass.
TEST_P(RecurrenceTest, ConvolutionInPiecesHasTheSameBits) {
  constexpr std::int64_t kChannels = 70, kSteps = 4, kTokens = 23;
  const Conv whole({kChannels, kSteps, 1, kTokens, false}, MulAdd(GetParam()));
  ThreadPool pool(2);
  for (const std::int64_t piece : {1, 2, 3, 5, 22}) {
    Conv conv = whole;
    Values state[] = {conv.before, Values(conv.before.size())};
    Values y(conv.y.size());
    int from = 0;
    for (std::int64_t t = 0; t < kTokens; t += piece, from = 1 - from) {
      const std::int64_t count = std::min(piece, kTokens - t);
      const auto rows = [&](Values& values) {
        return TensorView::Dense(values.data() + t * kChannels, DType::kF32, kChannels, count);
      };
      const Status status = ShortConv(
          pool, rows(conv.x), {View(conv.taps, kSteps, kChannels)},
          Segments::Even(state[from], state[1 - from], 1, count).View((kSteps - 1) * kChannels),
          rows(y));
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_TRUE(SameBits(y, whole.y)) << piece;
    EXPECT_TRUE(SameBits(state[from], whole.after)) << piece;
  }
}

TEST(ShortConvTest, MismatchesNameBothSides) {
  ThreadPool pool(1);
  Values memory(256);
  const auto conv = [&](std::int64_t steps, std::int64_t values, std::int32_t tokens) {
    Segments segments;
    segments.Add(2, memory.data(), memory.data());
    segments.Add(tokens, memory.data(), memory.data());
    segments.EndStrand();
    return ShortConv(pool, View(memory, 8, 6), {View(memory, steps, 8)}, segments.View(values),
                     View(memory, 8, 6));
  };
  EXPECT_EQ(conv(1, 0, 2).message(), "short convolution: 1 steps; must be 2 to 32");
  EXPECT_EQ(conv(1, 0, 2).code(), StatusCode::kUnsupported);
  EXPECT_EQ(conv(3, 14, 2).message(),
            "short convolution: x is f32 [8, 6], y is f32 [8, 6], taps are f32 [3, 8], a state has "
            "14 values; must be f32 x and y [channels, batch], taps [steps, channels] and (steps - "
            "1) x channels values");
  EXPECT_EQ(conv(3, 16, 5).message(),
            "short convolution: segment 1 has 5 tokens from 2 on; must be in the batch of 6, with "
            "memory for both states");
  EXPECT_EQ(conv(3, 16, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      ShortConv(pool, View(memory, 8, 6), {View(memory, 3, 8)}, {.values = 16}, View(memory, 8, 6))
          .message(),
      "short convolution: the strands must divide the 0 segments");
}

// ---- Scan

// One column of one head of one sequence, computed in type T.
template <typename T, typename Fma>
struct ScanColumn {
  const ScanData& data;
  Fma fma;

  T SumOfSquares(const float* x) const {
    std::array<T, 64> lanes{};
    for (std::int64_t i = 0; i < data.shape.k_dim; ++i) {
      T& lane = lanes[Size(i % 64)];
      lane = fma(T{x[i]}, T{x[i]}, lane);
    }
    for (std::size_t half = 32; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }

  T Norm(const float* x) const {
    const float epsilon = data.shape.options.norm_epsilon;
    return epsilon > 0 ? T{1} / std::sqrt(SumOfSquares(x) + T{epsilon}) : T{1};
  }

  // Computes the column's state after all tokens, and its outputs.
  void Run(std::int64_t s, std::int64_t h, std::int64_t v, std::vector<T>& state,
           std::vector<T>& out) const {
    const ScanShape& shape = data.shape;
    const std::int64_t group = shape.options.groups == ScanGroups::kRotating
                                   ? h % shape.groups
                                   : h / (shape.heads / shape.groups);
    state.clear();
    for (std::int64_t k = 0; k < shape.k_dim; ++k) {
      state.push_back(
          T{data.before[Size(((s * shape.heads + h) * shape.k_dim + k) * shape.v_dim + v)]});
    }
    out.clear();
    for (std::int64_t t = s * shape.tokens; t < (s + 1) * shape.tokens; ++t) {
      const float* const key = &data.keys[Size((t * shape.groups + group) * shape.k_dim)];
      const float* const query = &data.queries[Size((t * shape.groups + group) * shape.k_dim)];
      const T value{data.values[Size((t * shape.heads + h) * shape.v_dim + v)]};
      const T decay{data.decays[Size(t * shape.heads + h)]};
      const T step{data.steps[Size(t * shape.heads + h)]};
      const T key_norm = Norm(key);
      T taken = value;
      if (shape.options.rule == ScanRule::kDelta) {
        T held{0};
        for (std::size_t k = 0; k < state.size(); ++k) held = fma(state[k], T{key[k]}, held);
        taken = fma(-held, decay * key_norm, value);
      }
      taken *= step * key_norm;
      T sum{0};
      for (std::size_t k = 0; k < state.size(); ++k) {
        state[k] = fma(T{key[k]}, taken, state[k] * decay);
        sum = fma(state[k], T{query[k]}, sum);
      }
      T result = sum * (Norm(query) * T{shape.options.query_scale});
      if (!shape.options.skip.empty()) result = fma(T{shape.options.skip[Size(h)]}, value, result);
      out.push_back(result);
    }
  }
};

// Calls check(what, got, expected) for every value of the states and outputs.
template <typename T, typename Fma, typename Check>
void CompareScan(const ScanData& data, Fma fma, const Check& check) {
  const ScanShape& shape = data.shape;
  const ScanColumn<T, Fma> column{data, fma};
  std::vector<T> state, out;
  for (std::int64_t s = 0; s < shape.sequences; ++s) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t v = 0; v < shape.v_dim; ++v) {
        column.Run(s, h, v, state, out);
        for (std::int64_t k = 0; k < shape.k_dim; ++k) {
          check(data.after[Size(((s * shape.heads + h) * shape.k_dim + k) * shape.v_dim + v)],
                state[Size(k)]);
        }
        for (std::int64_t t = 0; t < shape.tokens; ++t) {
          const std::int64_t token = s * shape.tokens + t;
          check(data.out[Size((token * shape.heads + h) * shape.v_dim + v)], out[Size(t)]);
        }
      }
    }
  }
}

TEST_P(RecurrenceTest, ScanIsTheDocumentedChain) {
  for (const ScanShape& shape : kScanShapes) {
    SCOPED_TRACE(shape.v_dim);
    ScanData data(shape);
    ThreadPool pool(2);
    const Status status = data.Run(pool, 0, shape.tokens);
    ASSERT_TRUE(status.ok()) << status.message();
    int differing = 0;
    CompareScan<float>(data, MulAdd(GetParam()), [&](float got, float expected) {
      differing += std::memcmp(&got, &expected, sizeof(float)) != 0;
    });
    EXPECT_EQ(differing, 0);
  }
}

// The definition is computed in float64, in any order.
TEST_P(RecurrenceTest, ScanIsTheDefinition) {
  for (const ScanShape& shape : kScanShapes) {
    SCOPED_TRACE(shape.v_dim);
    ScanData data(shape);
    ThreadPool pool(2);
    ASSERT_TRUE(data.Run(pool, 0, shape.tokens).ok());
    const auto fma = [](double a, double b, double c) { return a * b + c; };
    double largest = 0.0;
    CompareScan<double>(data, fma, [&](float got, double expected) {
      largest = std::max(largest, std::abs(double{got} - expected) / (1.0 + std::abs(expected)));
    });
    EXPECT_LT(largest, 1e-5);
    EXPECT_GT(largest, 0.0);
  }
}

TEST_P(RecurrenceTest, ScanInPiecesAndOnAnyThreadsHasTheSameBits) {
  for (const ScanRule rule : {ScanRule::kAdd, ScanRule::kDelta}) {
    const ScanShape shape{20, 2, 100, 4, 1, 29, {.rule = rule, .norm_epsilon = 1e-6f}};
    ScanData whole(shape);
    ThreadPool one(1);
    ASSERT_TRUE(whole.Run(one, 0, shape.tokens).ok());
    ThreadPool three(3);
    for (const std::int64_t piece : {1, 2, 7, 28}) {
      ScanData pieces(shape);
      for (std::int64_t t = 0; t < shape.tokens; t += piece) {
        ASSERT_TRUE(pieces.Run(three, t, std::min(t + piece, shape.tokens)).ok());
        pieces.before = pieces.after;
      }
      EXPECT_TRUE(SameBits(pieces.out, whole.out)) << piece;
      EXPECT_TRUE(SameBits(pieces.after, whole.after)) << piece;
    }
  }
}

TEST(StateScanTest, MismatchesNameBothSides) {
  ThreadPool pool(1);
  const ScanShape fits{8, 2, 16, 4, 2, 3, {}};
  const auto message = [&](auto change) {
    ScanShape shape = fits;
    ScanData data(shape);
    change(data.shape);
    return data.Run(pool, 0, data.shape.tokens).message();
  };
  EXPECT_EQ(message([](ScanShape&) {}), "");
  EXPECT_EQ(message([](ScanShape& shape) { shape.groups = 3; }),
            "state scan: there are 4 heads, 3 groups of keys and 0 skip factors; heads must be a "
            "multiple of the groups, and skip factors none or one per head");
  EXPECT_EQ(message([](ScanShape& shape) { shape.options.skip = std::span(kSkip).first(3); }),
            "state scan: there are 4 heads, 2 groups of keys and 3 skip factors; heads must be a "
            "multiple of the groups, and skip factors none or one per head");
}

// ---- Decay

TEST_P(RecurrenceTest, DecayRatesAreSoftPlusAndItsExponential) {
  constexpr std::int64_t kHeads = 37;
  Values raw = RandomValues(kHeads, 1);
  Values bias = RandomValues(kHeads, 2);
  Values rates = RandomValues(kHeads, 3);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    rates[i] = -std::abs(rates[i]);
    raw[i] *= 8.0f;
  }
  raw[0] = 200.0f;
  raw[1] = -200.0f;
  Values steps(raw.size());
  Values decays(raw.size());
  ThreadPool pool(1);
  ASSERT_TRUE(DecayRates(pool, View(raw, kHeads), View(bias, kHeads), View(rates, kHeads),
                         View(steps, kHeads), View(decays, kHeads))
                  .ok());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const double x = double{raw[i] + bias[i]};
    const double step = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
    EXPECT_NEAR(steps[i], step, 1e-6 * step + 1e-37) << i;
    EXPECT_NEAR(decays[i], std::exp(double{rates[i]} * step), 4e-6) << i;
    // A value alone, in another lane, has the same bits.
    Values alone_step(1), alone_decay(1), r{raw[i]}, b{bias[i]}, a{rates[i]};
    ASSERT_TRUE(DecayRates(pool, View(r, 1), View(b, 1), View(a, 1), View(alone_step, 1),
                           View(alone_decay, 1))
                    .ok());
    EXPECT_TRUE(SameBits(alone_step, {steps[i]}));
    EXPECT_TRUE(SameBits(alone_decay, {decays[i]}));
  }
}

TEST(DecayRatesTest, MismatchesNameBothSides) {
  ThreadPool pool(1);
  Values memory(16);
  EXPECT_EQ(DecayRates(pool, View(memory, 4, 2), View(memory, 3), View(memory, 4),
                       View(memory, 4, 2), View(memory, 4, 2))
                .message(),
            "decay rates: bias is f32 [3, 1], rates are f32 [4, 1], raw is f32 [4, 2], steps are "
            "f32 [4, 2], decays are f32 [4, 2]; must be f32 bias and rates [heads], and the others "
            "[heads, batch]");
}

}  // namespace
}  // namespace kvcache::cpu::recurrence_test
