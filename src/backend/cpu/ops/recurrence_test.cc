#include "backend/cpu/ops/recurrence.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/testing.h"

namespace kvcache::cpu {
namespace {

using testing::ForcedTarget;
using testing::MulAdd;
using testing::RandomValues;
using Values = std::vector<float>;

TensorView View(Values& values, std::int64_t d0, std::int64_t d1 = 1, std::int64_t d2 = 1,
                std::int64_t d3 = 1) {
  EXPECT_GE(static_cast<std::int64_t>(values.size()), d0 * d1 * d2 * d3);
  return TensorView::Dense(values.data(), DType::kF32, d0, d1, d2, d3);
}

bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::size_t Size(std::int64_t size) {
  return static_cast<std::size_t>(size);
}

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
                  {.before = View(conv.before, shape.steps - 1, shape.channels, shape.sequences),
                   .after = View(after, shape.steps - 1, shape.channels, shape.sequences)},
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
      const Status status = ShortConv(pool, rows(conv.x), {View(conv.taps, kSteps, kChannels)},
                                      {.before = View(state[from], kSteps - 1, kChannels),
                                       .after = View(state[1 - from], kSteps - 1, kChannels)},
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
  const auto conv = [&](std::int64_t steps, std::int64_t channels, std::int64_t sequences) {
    return ShortConv(
        pool, View(memory, 8, 6), {View(memory, steps, 8)},
        {.before = View(memory, std::max<std::int64_t>(steps, 1) - 1, channels, sequences),
         .after = View(memory, std::max<std::int64_t>(steps, 1) - 1, channels, sequences)},
        View(memory, 8, 6));
  };
  EXPECT_EQ(conv(1, 8, 2).message(), "short convolution: 1 steps; must be 2 to 32");
  EXPECT_EQ(conv(1, 8, 2).code(), StatusCode::kUnsupported);
  EXPECT_EQ(conv(3, 7, 2).message(),
            "short convolution: x is f32 [8, 6], y is f32 [8, 6], taps are f32 [3, 8], inputs are "
            "f32 [2, 7, 2] and f32 [2, 7, 2]; must be f32 x and y [channels, batch], taps [steps, "
            "channels] and inputs [steps - 1, channels, sequences]");
  EXPECT_EQ(conv(3, 8, 4).message(),
            "short convolution: the batch has 6 tokens; must be a multiple of 4 sequences");
}

// ---- Scan

struct ScanShape {
  std::int64_t k_dim, groups, v_dim, heads, sequences, tokens;
  ScanOptions options;
  std::int64_t batch() const { return sequences * tokens; }
};

constexpr float kSkip[] = {0.5f, -1.25f, 2.0f, 0.0f};
const ScanShape kScanShapes[] = {
    {16, 1, 16, 1, 1, 5, {.rule = ScanRule::kDelta}},
    {24, 2, 70, 4, 2, 3, {.rule = ScanRule::kDelta, .norm_epsilon = 1e-6f, .query_scale = 0.2f}},
    {17, 1, 5, 2, 3, 1, {.rule = ScanRule::kDelta, .norm_epsilon = 1e-6f}},
    {33, 2, 64, 4, 1, 9, {.rule = ScanRule::kAdd, .skip = kSkip}},
    {8, 4, 129, 4, 2, 2, {.rule = ScanRule::kAdd, .query_scale = 3.0f}},
};

struct ScanData {
  explicit ScanData(const ScanShape& of)
      : shape(of),
        keys(RandomValues(of.k_dim * of.groups * of.batch(), 1)),
        queries(RandomValues(of.k_dim * of.groups * of.batch(), 2)),
        values(RandomValues(of.v_dim * of.heads * of.batch(), 3)),
        decays(RandomValues(of.heads * of.batch(), 4)),
        steps(RandomValues(of.heads * of.batch(), 5)),
        before(RandomValues(of.v_dim * of.k_dim * of.heads * of.sequences, 6)),
        after(before.size()),
        out(values.size()) {
    for (float& decay : decays) decay = std::exp(-std::abs(decay));
    for (float& step : steps) step = std::abs(step) / 2;
  }

  // Scans tokens [begin, end) of every sequence. REQUIRES: one sequence, or all tokens.
  Status Run(ThreadPool& pool, std::int64_t begin, std::int64_t end) {
    const std::int64_t batch = shape.sequences * (end - begin);
    const auto part = [&](Values& all, std::int64_t d0, std::int64_t d1) {
      return TensorView::Dense(all.data() + d0 * d1 * begin, DType::kF32, d0, d1, batch);
    };
    const auto rates = [&](Values& all) {
      return TensorView::Dense(all.data() + shape.heads * begin, DType::kF32, shape.heads, batch);
    };
    const auto state = [&](Values& all) {
      return View(all, shape.v_dim, shape.k_dim, shape.heads, shape.sequences);
    };
    return StateScan(pool,
                     {.keys = part(keys, shape.k_dim, shape.groups),
                      .queries = part(queries, shape.k_dim, shape.groups),
                      .values = part(values, shape.v_dim, shape.heads),
                      .decays = rates(decays),
                      .steps = rates(steps)},
                     shape.options, {.before = state(before), .after = state(after)},
                     part(out, shape.v_dim, shape.heads));
  }

  ScanShape shape;
  Values keys, queries, values, decays, steps, before, after, out;
};

// One column of one head of one sequence, computed in type T.
template <typename T, typename Fma>
struct ScanColumn {
  const ScanData& data;
  Fma fma;

  T SumOfSquares(const float* x) const {
    std::array<T, 16> lanes{};
    for (std::int64_t i = 0; i < data.shape.k_dim; ++i) {
      T& lane = lanes[Size(i % 16)];
      lane = fma(T{x[i]}, T{x[i]}, lane);
    }
    for (std::size_t half = 8; half > 0; half /= 2) {
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
    const std::int64_t group = h / (shape.heads / shape.groups);
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
}  // namespace kvcache::cpu
