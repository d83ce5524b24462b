// Checks attention over keys and values of block types. Compares every pair of types with the
// documented chain, as bytes, and with double precision over the stored values.
#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cpu/attention/attention_chain_testing.h"
#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/common/kv_blocks_testing.h"
#include "gtest/gtest.h"

namespace kvcache::cpu::block_test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0};

class AttentionBlockPairs : public ::testing::TestWithParam<std::tuple<DType, DType>> {};

// Uses groups of 1 to 9 rows in one call, which are all sizes of the decode kernel, and many rows
// for prefill.
TEST_P(AttentionBlockPairs, PerformTheDocumentedChain) {
  const auto [k_type, v_type] = GetParam();
  if (!IsKvBlockType(k_type) && !IsKvBlockType(v_type)) return;  // in attention_test.cc
  const auto backend = CpuWithThreads(2);
  for (const int group : {1, 2, 3, 4, 9}) {
    const KvShape shape = group == 4 ? KvShape{2, 128, 128} : KvShape{1, 96, 160};
    Scene scene({shape, group * shape.kv_heads, k_type, v_type}, Scene::Contiguous({300, 20}));
    scene.Fill(*backend);
    const std::vector<QueryAt> few = {{0, 299}, {1, 19}, {0, 255}};
    EXPECT_TRUE(SameBits(Attend(*backend, scene, few, {}), ChainOf(scene, few, {}))) << group;
    const std::vector<QueryAt> many = Range(0, 250, 300);
    EXPECT_TRUE(SameBits(Attend(*backend, scene, many, {}), ChainOf(scene, many, {}))) << group;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionBlockPairs,
                         ::testing::Combine(::testing::ValuesIn(kTypes),
                                            ::testing::ValuesIn(kTypes)),
                         [](const auto& test) {
                           return std::string(InfoOf(std::get<0>(test.param)).name) + "_" +
                                  std::string(InfoOf(std::get<1>(test.param)).name);
                         });

TEST(AttentionBlocks, BitsDependNeitherOnBatchesNorCellsNorThreads) {
  const auto one = CpuWithThreads(1);
  const auto two = CpuWithThreads(2);
  const std::vector<QueryAt> batch = Range(0, 600, 700);
  const auto with_types = [](DType k_type, DType v_type) {
    return SceneOptions{{2, 64, 96}, 6, k_type, v_type};
  };
  const SceneOptions latents{{2, 96, 64, true}, 6, DType::kQ8_0, DType::kQ8_0};
  for (const SceneOptions& options :
       {with_types(DType::kQ8_0, DType::kQ8_0), with_types(DType::kQ4_0, DType::kQ4_0),
        with_types(DType::kQ8_0, DType::kQ4_0), latents}) {
    Scene contiguous(options, Scene::Contiguous({700}));
    contiguous.Fill(*two);
    const std::vector<float> expected = Attend(*two, contiguous, batch, {});
    EXPECT_TRUE(SameBits(Attend(*one, contiguous, batch, {}), expected));
    for (const std::size_t piece : {1u, 2u, 7u, 11u, 64u}) {
      EXPECT_TRUE(SameBits(InPieces(*two, contiguous, batch, piece), expected)) << piece;
    }
    for (const int kind : {0, 1, 2}) {
      Scene scene(options, Scattered(kind));
      scene.Fill(*two);
      EXPECT_TRUE(SameBits(Attend(*two, scene, batch, {}), expected)) << kind;
      EXPECT_TRUE(SameBits(InPieces(*two, scene, batch, 3), expected)) << kind;
    }
  }
}

// With one thread a task has several splits, and the first task merges its splits on the way. With
// three threads a task has one split here.
TEST(AttentionBlocks, TasksOfSeveralSplitsMatchTheChain) {
  const auto one = CpuWithThreads(1);
  const auto three = CpuWithThreads(3);
  for (const DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_0}) {
    Scene scene({{2, 32, 32}, 4, type, type}, Scene::Contiguous({2100}));
    scene.Fill(*one);
    for (const int tokens : {1, 4}) {
      for (const int window : {0, 1500}) {
        const std::vector<QueryAt> batch = Range(0, 2100 - tokens, 2100);
        const Rules rules{.window = window};
        const std::vector<float> expected = ChainOf(scene, batch, rules);
        EXPECT_TRUE(SameBits(Attend(*one, scene, batch, rules), expected))
            << tokens << " " << window;
        EXPECT_TRUE(SameBits(Attend(*three, scene, batch, rules), expected));
      }
    }
  }
}

// The kernel must not read a key and a value right after those that a query sees.
TEST(AttentionBlocks, UnseenCellsNeverMatter) {
  const auto backend = CpuWithThreads(2);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (const int tokens : {1, 60}) {
      Scene scene({{1, 32, 64}, 2, type, type}, Scene::Contiguous({300}));
      scene.Fill(*backend);
      const std::vector<QueryAt> batch = Range(0, 299 - tokens, 299);
      const std::vector<float> expected = Attend(*backend, scene, batch, {});
      auto* const k = scene.layer().k + BlockTile(type, 32, 299);
      auto* const v = scene.layer().v + BlockTile(type, 64, 299);
      const std::uint16_t nan = 0x7e00;
      std::memcpy(k + BlockScale(type, 32, 0, 299 % 16), &nan, sizeof nan);
      for (int b = 0; b < 2; ++b) {
        std::memcpy(v + BlockScale(type, 64, b, 299 % 16), &nan, sizeof nan);
      }
      EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, {}), expected));
      EXPECT_TRUE(std::isnan(Attend(*backend, scene, {{0, 299}}, {})[0]));
    }
  }
}

// One row in double precision over the stored values, and the largest error of f32. With keys of
// block types, a score has an error of half a unit of the quantized query for every value of the
// key, and one rounding per step. With values of block types, a sum has an error of half a unit of
// the weights for every code. The rest is as in attention_test.cc.
struct DoubleRow {
  std::vector<double> out;
  std::vector<double> bound;
};

struct DoubleScore {
  double value = 0.0;
  double error = 0.0;
};

// Returns the query, multiplied by the keys' Hadamard matrix.
std::vector<double> TransformedQuery(const Scene& scene, float scale, const QueryAt& query,
                                     int head) {
  const int dim = scene.options().shape.k_dim;
  const bool turned_keys = IsKvBlockType(scene.options().k_type);
  const auto latent = static_cast<int>(LatentBlocks(scene.layer()) * kKvBlock);
  std::vector<double> transformed(static_cast<std::size_t>(dim), 0.0);
  for (int i = 0; i < dim; ++i) {
    const int begin = i < latent ? 0 : latent;
    const auto size = static_cast<int>(!turned_keys ? 1
                                       : i < latent ? LatentHadamardSize(latent)
                                                    : HadamardSize(dim - latent));
    const int part = begin + (i - begin) / size * size;
    for (int j = part; j < part + size; ++j) {
      const double sign = __builtin_parity(static_cast<unsigned>((i - part) & (j - part))) ? -1 : 1;
      transformed[static_cast<std::size_t>(i)] +=
          sign * scene.Query(query, head, j) * scale / std::sqrt(static_cast<double>(size));
    }
  }
  return transformed;
}

DoubleScore ScoreOf(const Scene& scene, const std::vector<double>& q, const QueryAt& query,
                    int kv_head, Position p) {
  constexpr double kUnit = 0x1p-24;
  DoubleScore score;
  const bool quantized = IsKvBlockType(scene.options().k_type);
  const auto latent = static_cast<std::size_t>(LatentBlocks(scene.layer()) * kKvBlock);
  for (std::size_t from = 0; from < q.size();) {
    const std::size_t end = std::min(q.size(), from < latent ? latent : from + kKvBlock);
    double max = 0.0;
    double size = 0.0;
    double keys = 0.0;
    for (std::size_t d = from; d < end; ++d) {
      const double key = scene.Key(query.sequence, p, kv_head, static_cast<int>(d));
      score.value += q[d] * key;
      max = std::max(max, std::fabs(q[d]));
      size += std::fabs(q[d] * key);
      keys += std::fabs(key);
    }
    if (quantized) score.error += 0.5001 * max / 127.0 * keys;
    score.error += (static_cast<double>(q.size()) + 16.0) * kUnit * size;
    from = end;
  }
  return score;
}

// Returns the error of value d's sum that comes from its weights, which are integers times a unit
// in each split. The rounded inverse of the unit adds less than a hundredth.
double WeightError(const Scene& scene, const QueryAt& query, int kv_head,
                   const std::vector<double>& weights, int d) {
  double error = 0.0;
  for (Position base = 0; base <= query.position; base += kSplitPositions) {
    double max = 0.0;
    double codes = 0.0;
    for (Position p = base; p <= std::min(query.position, base + kSplitPositions - 1); ++p) {
      const std::int64_t cell = scene.CellOf(query.sequence, p);
      const StoredInBlock value = StoredTerm(scene.layer(), kv_head, cell, d);
      max = std::max(max, weights[static_cast<std::size_t>(p)] * std::fabs(value.scale));
      codes += std::abs(value.code);
    }
    error += 0.51 * max / 32512.0 * codes;
  }
  return error;
}

// Transforms a row of latents' values back. Each value of the result is a sum of the part's, and rounds once in each
// step.
void TransformBack(DoubleRow& row) {
  const std::size_t size =
      static_cast<std::size_t>(LatentHadamardSize(static_cast<std::int64_t>(row.out.size())));
  const DoubleRow from = row;
  for (std::size_t i = 0; i < row.out.size(); ++i) {
    const std::size_t part = i / size * size;
    double sum = 0.0;
    double bound = 0.0;
    double magnitude = 0.0;
    for (std::size_t j = part; j < part + size; ++j) {
      const bool minus = __builtin_parityll((i - part) & (j - part)) != 0;
      sum += minus ? -from.out[j] : from.out[j];
      bound += from.bound[j];
      magnitude += std::fabs(from.out[j]) + from.bound[j];
    }
    const double root = std::sqrt(static_cast<double>(size));
    row.out[i] = sum / root;
    row.bound[i] = (bound + 16.0 * 0x1p-24 * magnitude) / root;
  }
}

DoubleRow ReferenceRow(const Scene& scene, const Rules& rules, const QueryAt& query, int head) {
  constexpr double kUnit = 0x1p-24;
  const SceneOptions& o = scene.options();
  const int kv_head = head / (o.heads / o.shape.kv_heads);
  const std::vector<double> q = TransformedQuery(scene, rules.scale, query, head);
  std::vector<double> weights;
  double error = 0.0;
  double max = -1e300;
  for (Position p = 0; p <= query.position; ++p) {
    const DoubleScore score = ScoreOf(scene, q, query, kv_head, p);
    weights.push_back(score.value);
    error = std::max(error, score.error);
    max = std::max(max, score.value);
  }
  double total = 0.0;
  for (double& w : weights) total += w = std::exp(w - max);
  // Every weight has at most this relative error, and so has their sum.
  const double seen = static_cast<double>(weights.size());
  const double relative = std::expm1(2.0 * error + (seen + 32.0) * 2.0 * kUnit);
  DoubleRow row;
  for (int d = 0; d < o.shape.v_dim; ++d) {
    double sum = 0.0;
    double size = 0.0;
    for (Position p = 0; p <= query.position; ++p) {
      const double term =
          weights[static_cast<std::size_t>(p)] / total * scene.Value(query.sequence, p, kv_head, d);
      sum += term;
      size += std::fabs(term);
    }
    row.out.push_back(sum);
    const double rounded = WeightError(scene, query, kv_head, weights, d) / total;
    row.bound.push_back(relative * (size + rounded) + rounded);
  }
  if (HoldsLatents(scene.layer())) TransformBack(row);
  return row;
}

TEST(AttentionBlocks, AreWithinTheBoundOfDoublePrecision) {
  const auto backend = CpuWithThreads(2);
  const auto with_types = [](DType k_type, DType v_type) {
    return SceneOptions{{2, 128, 64}, 4, k_type, v_type};
  };
  const SceneOptions latents{{1, 192, 128, true}, 4, DType::kQ8_0, DType::kQ8_0};
  for (const SceneOptions& options :
       {with_types(DType::kQ8_0, DType::kQ8_0), with_types(DType::kQ4_0, DType::kQ4_0),
        with_types(DType::kF32, DType::kQ8_0), with_types(DType::kF32, DType::kQ4_0), latents}) {
    Scene scene(options, Scene::Contiguous({900}));
    scene.Fill(*backend);
    // The scores of float keys are small, so their error does not hide the rounding of the weights.
    const Rules rules{.scale = IsKvBlockType(options.k_type) ? 0.09f : 0.005f};
    const std::vector<QueryAt> batch = {{0, 899}, {0, 3}, {0, 500}};
    const std::vector<float> out = Attend(*backend, scene, batch, rules);
    std::size_t i = 0;
    for (const QueryAt& query : batch) {
      for (int head = 0; head < scene.options().heads; ++head) {
        const DoubleRow row = ReferenceRow(scene, rules, query, head);
        for (std::size_t d = 0; d < row.out.size(); ++d, ++i) {
          ASSERT_NEAR(out[i], row.out[d], row.bound[d])
              << query.position << " " << head << " " << d;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu::block_test
