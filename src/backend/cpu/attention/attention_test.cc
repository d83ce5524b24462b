// Compares attention with the documented chain, as bytes, and with double precision, within a bound
// that follows from the number of roundings.
#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_chain_testing.h"
#include "backend/cpu/attention/attention_testing.h"
#include "gtest/gtest.h"

namespace kvcache::cpu::attention_test {
namespace {

struct ShapeCase {
  const char* name;
  KvShape shape;
  int heads;
  DType k_type;
  DType v_type;
};

const ShapeCase kShapes[] = {
    {"llama_f16", {2, 64, 64}, 8, DType::kF16, DType::kF16},
    {"three_per_group_bf16", {3, 64, 64}, 9, DType::kBF16, DType::kBF16},
    {"f32_128", {1, 128, 128}, 4, DType::kF32, DType::kF32},
    {"mixed_80_96", {2, 80, 96}, 2, DType::kF16, DType::kF32},
    {"odd_sizes", {2, 33, 37}, 10, DType::kF32, DType::kBF16},
    {"tiny_heads", {1, 5, 3}, 2, DType::kBF16, DType::kF16},
    {"one_value", {1, 1, 1}, 7, DType::kF32, DType::kF16},
    {"latent_f16", {1, 96, 64, true}, 8, DType::kF16, DType::kF16},
    {"latent_f32", {1, 160, 128, true}, 3, DType::kF32, DType::kF32},
    {"latent_odd_bf16", {2, 53, 39, true}, 6, DType::kBF16, DType::kBF16},
    {"latent_small", {1, 9, 9, true}, 40, DType::kF32, DType::kF32},
    {"latent_q8_0", {1, 96, 64, true}, 8, DType::kQ8_0, DType::kQ8_0},
    {"latent_q8_0_of_deepseek", {1, 576, 512, true}, 16, DType::kQ8_0, DType::kQ8_0},
    {"latent_q8_0_without_rest", {2, 160, 160, true}, 6, DType::kQ8_0, DType::kQ8_0},
    {"latent_q8_0_wide", {1, 1056, 1024, true}, 3, DType::kQ8_0, DType::kQ8_0},
};

class AttentionShapes : public ::testing::TestWithParam<ShapeCase> {};

// Compares decode, prefill and the plain layouts with the chain.
TEST_P(AttentionShapes, PerformsTheDocumentedChain) {
  const ShapeCase& c = GetParam();
  const auto backend = CpuWithThreads(2);
  for (const KvLayout layout : {KvLayout::kTiled, KvLayout::kPlain}) {
    for (const bool transposed : {false, true}) {
      if (transposed && (layout == KvLayout::kTiled || c.shape.v_in_k)) continue;
      if (layout == KvLayout::kPlain && IsKvBlockType(c.k_type)) continue;
      Scene scene({c.shape, c.heads, c.k_type, c.v_type, layout, transposed},
                  Scene::Contiguous({300, 20}));
      scene.Fill(*backend);
      const Rules rules;
      std::vector<QueryAt> few = {{0, 299}, {1, 19}, {0, 255}, {0, 256}};
      EXPECT_TRUE(SameBits(Attend(*backend, scene, few, rules), ChainOf(scene, few, rules)));
      const std::vector<QueryAt> many = Range(0, 222, 300);
      EXPECT_TRUE(SameBits(Attend(*backend, scene, many, rules), ChainOf(scene, many, rules)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionShapes, ::testing::ValuesIn(kShapes),
                         [](const auto& test) { return std::string(test.param.name); });

Scene TwoSequences(KvBackend& backend) {
  Scene scene({{2, 64, 64}, 6, DType::kF16, DType::kF16}, Scene::Contiguous({700, 90}));
  scene.Fill(backend);
  return scene;
}

TEST(Attention, BitsDoNotDependOnTheBatch) {
  const auto backend = CpuWithThreads(2);
  const Scene scene = TwoSequences(*backend);
  std::vector<QueryAt> batch = Range(0, 400, 700);
  const std::vector<QueryAt> other = Range(1, 0, 90);
  batch.insert(batch.begin() + 100, other.begin(), other.end());
  const std::vector<float> at_once = Attend(*backend, scene, batch, {});
  for (const std::size_t piece : {1u, 2u, 7u, 11u, 64u, 250u}) {
    EXPECT_TRUE(SameBits(InPieces(*backend, scene, batch, piece), at_once)) << piece;
  }
}

TEST(Attention, BitsDoNotDependOnTheOrderInTheBatch) {
  const auto backend = CpuWithThreads(2);
  const Scene scene = TwoSequences(*backend);
  std::vector<QueryAt> batch = Range(0, 590, 700);
  std::vector<float> forward = Attend(*backend, scene, batch, {});
  std::reverse(batch.begin(), batch.end());
  const std::vector<float> backward = Attend(*backend, scene, batch, {});
  const std::size_t row = backward.size() / batch.size();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto from = backward.begin() + static_cast<std::ptrdiff_t>((batch.size() - 1 - i) * row);
    ASSERT_TRUE(std::equal(from, from + static_cast<std::ptrdiff_t>(row),
                           forward.begin() + static_cast<std::ptrdiff_t>(i * row)))
        << i;
  }
}

TEST(Attention, BitsDoNotDependOnThreads) {
  const auto one = CpuWithThreads(1);
  const Scene scene = TwoSequences(*one);
  std::vector<QueryAt> batch = Range(0, 500, 700);
  batch.push_back({1, 89});
  const std::vector<float> expected = Attend(*one, scene, batch, {});
  for (const int threads : {2, 3}) {
    const auto backend = CpuWithThreads(threads);
    for (int repeat = 0; repeat < 5; ++repeat) {
      EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, {}), expected)) << threads;
    }
  }
}

TEST(Attention, BitsDoNotDependOnCells) {
  const auto backend = CpuWithThreads(2);
  const SceneOptions options{{2, 64, 48}, 6, DType::kF16, DType::kBF16};
  Scene contiguous(options, Scene::Contiguous({700}));
  contiguous.Fill(*backend);
  const std::vector<QueryAt> batch = Range(0, 600, 700);
  const std::vector<float> expected = Attend(*backend, contiguous, batch, {});
  const std::vector<float> last = Attend(*backend, contiguous, {{0, 699}}, {});
  for (const int kind : {0, 1, 2}) {
    for (const KvLayout layout : {KvLayout::kTiled, KvLayout::kPlain}) {
      SceneOptions scattered = options;
      scattered.layout = layout;
      Scene scene(scattered, Scattered(kind));
      scene.Fill(*backend);
      EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, {}), expected)) << kind;
      EXPECT_TRUE(SameBits(Attend(*backend, scene, {{0, 699}}, {}), last)) << kind;
    }
  }
}

// One row in double precision, and the largest error of f32. A score has one rounding for
// the scaled query and one per step of its chain; errors of scores shift every weight by that
// factor, up and down, and sums of n terms round n times.
struct DoubleRow {
  std::vector<double> out;
  std::vector<double> bound;
};

DoubleRow ReferenceRow(const Scene& scene, const Rules& rules, const QueryAt& query, int head) {
  constexpr double kUnit = 0x1p-24;
  const SceneOptions& o = scene.options();
  const int kv_head = head / (o.heads / o.shape.kv_heads);
  std::vector<Position> seen;
  std::vector<double> scores;
  double score_error = 0.0;
  for (Position p = 0; p < scene.End(query.sequence); ++p) {
    if (!Sees(scene, rules, query, p)) continue;
    double s = 0.0;
    double size = 0.0;
    for (int d = 0; d < o.shape.k_dim; ++d) {
      const double product = static_cast<double>(scene.Query(query, head, d)) * rules.scale *
                             scene.Key(query.sequence, p, kv_head, d);
      s += product;
      size += std::fabs(product);
    }
    seen.push_back(p);
    scores.push_back(s);
    score_error = std::max(score_error, (o.shape.k_dim + 4) * kUnit * size);
  }
  const double m = *std::max_element(scores.begin(), scores.end());
  double total = 0.0;
  for (double& s : scores) total += s = std::exp(s - m);
  const double relative = 2 * (2 * score_error + (static_cast<double>(seen.size()) + 32) * kUnit);
  DoubleRow row;
  for (int d = 0; d < o.shape.v_dim; ++d) {
    double sum = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const double term = scores[i] * scene.Value(query.sequence, seen[i], kv_head, d) / total;
      sum += term;
      size += std::fabs(term);
    }
    row.out.push_back(sum);
    row.bound.push_back(relative * size);
  }
  return row;
}

TEST(Attention, IsWithinTheBoundOfDoublePrecision) {
  const auto backend = CpuWithThreads(2);
  Scene scene({{2, 128, 64}, 4, DType::kF16, DType::kF16}, Scene::Contiguous({900}));
  scene.Fill(*backend);
  const Rules rules{.scale = 0.3f};
  const std::vector<QueryAt> batch = {{0, 899}, {0, 3}, {0, 500}};
  const std::vector<float> out = Attend(*backend, scene, batch, rules);
  std::size_t i = 0;
  for (const QueryAt& query : batch) {
    for (int head = 0; head < scene.options().heads; ++head) {
      const DoubleRow row = ReferenceRow(scene, rules, query, head);
      for (std::size_t d = 0; d < row.out.size(); ++d, ++i) {
        ASSERT_NEAR(out[i], row.out[d], row.bound[d]) << query.position << " " << head << " " << d;
      }
    }
  }
}

TEST(AttentionMath, ExpIsWithinTwoUnitsInTheLastPlace) {
  const Arithmetic math;
  EXPECT_EQ(math.Exp(0.0f), 1.0f);
  EXPECT_EQ(math.Exp(-87.5f), 0.0f);
  EXPECT_EQ(math.Exp(-std::numeric_limits<float>::infinity()), 0.0f);
  for (float x = -87.0f; x < 0.0f; x += 0.00037f) {
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double unit = std::nextafter(rounded, 2.0f) - rounded;
    ASSERT_NEAR(math.Exp(x), exact, 2 * unit) << x;
  }
}

TEST(AttentionMath, TanhIsWithinFourUnitsInTheLastPlace) {
  const Arithmetic math;
  for (float x = -12.0f; x < 12.0f; x += 0.00037f) {
    const double exact = std::tanh(static_cast<double>(x));
    const float rounded = static_cast<float>(std::fabs(exact));
    const double unit = std::nextafter(rounded, 2.0f) - rounded;
    ASSERT_NEAR(math.Tanh(x), exact, 4 * unit) << x;
  }
}

}  // namespace
}  // namespace kvcache::cpu::attention_test
