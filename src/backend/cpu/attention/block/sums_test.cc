// Checks the sums of values of block types, which are exact in integers. Compares them as bytes
// with the documented chain on every target, for the most difficult cells, weights and scales.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/attention/attention_chain_testing.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/common/kv_blocks_testing.h"
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"
#include "support/internal/tile_emulator.h"

namespace kvcache::cpu::sums_test {
namespace {

using testing::ForcedTarget;
using testing::MulAdd;
using Runs = std::vector<std::vector<HistoryRun>>;

constexpr DType kTypes[] = {DType::kQ8_0, DType::kQ4_0};

// Rows of a KV head in one call, tokens × group: 1, 2, 3, 4, 8 and 20 for the decode kernel, 37 for
// the prefill kernel.
struct RowCount {
  int tokens;
  int group;
};
constexpr RowCount kRows[] = {{1, 1}, {1, 2}, {3, 1}, {1, 4}, {2, 4}, {4, 5}, {1, 20}, {37, 1}};
constexpr RowCount kFewAndMany[] = {{1, 3}, {4, 5}, {37, 1}};

// Returns the last tokens of sequence 0.
std::vector<QueryAt> LastTokens(const Scene& scene, int tokens) {
  return Range(0, scene.End(0) - tokens, scene.End(0));
}

Scene FilledScene(const SceneOptions& options, const Runs& runs) {
  Scene scene(options, runs);
  scene.Fill(*CpuWithThreads(1));
  return scene;
}

// Calls each(head, cell, position, d) for every value that a sequence retains.
template <class Each>
void ForEachValue(const Scene& scene, int sequence, const Each& each) {
  const KvShape& shape = scene.options().shape;
  for (Position p = 0; p < scene.End(sequence); ++p) {
    if (!scene.Keeps(sequence, p)) continue;
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (int d = 0; d < shape.v_dim; ++d) each(head, scene.CellOf(sequence, p), p, d);
    }
  }
}

// Returns rules for which every score is 0.
Rules EqualScores() {
  return {.scale = 0.0f};
}

// Returns rules for which the score is 0 at the query's own position and -down at any other.
Rules OwnPositionAbove(float down, int heads) {
  Rules rules = EqualScores();
  rules.past = 1;
  for (int h = 0; h < heads; ++h) {
    rules.bias.push_back(-down);
    rules.bias.push_back(0.0f);
  }
  return rules;
}

// Calls Attention with every target.
template <class Check>
void OnEveryTarget(const Scene& scene, const std::vector<QueryAt>& batch, const Rules& rules,
                   const Check& check) {
  for (const std::string& target : kvcache::testing::TestedTargets()) {
    SCOPED_TRACE(target + ", " + std::string(InfoOf(scene.options().v_type).name) + ", " +
                 std::to_string(batch.size()) + " tokens of " +
                 std::to_string(scene.options().heads) + " heads");
    const ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok());
    check(target, Attend(*CpuWithThreads(2), scene, batch, rules));
  }
}

// The documented chain, as computed by targets with fused multiply-add and by the portable target.
class BothChains {
 public:
  BothChains(const Scene& scene, const std::vector<QueryAt>& batch, const Rules& rules)
      : fused_(ChainOf(scene, batch, rules)),
        rounded_(ChainOf(scene, batch, rules, {.fused = false})) {}

  const std::vector<float>& Of(const std::string& target) const {
    return MulAdd(target).fused ? fused_ : rounded_;
  }

 private:
  std::vector<float> fused_;
  std::vector<float> rounded_;
};

void ExpectTheChain(const Scene& scene, const std::vector<QueryAt>& batch, const Rules& rules) {
  const BothChains chains(scene, batch, rules);
  OnEveryTarget(scene, batch, rules, [&](const std::string& target, const std::vector<float>& out) {
    EXPECT_TRUE(SameBits(out, chains.Of(target)));
  });
}

// --- Placement of cells

// Puts every position into a tile of its own, at various offsets in the tile.
Runs FarCells() {
  std::vector<HistoryRun> runs;
  for (Position p = 0; p < 300; ++p) runs.push_back({p, p * 7 % 311 * 16 + p * 5 % 16, 1});
  return {runs};
}

// Returns runs of `length` positions that begin 1, 3, 5 and 15 cells after the start of a tile.
Runs Shifted(Position length) {
  constexpr std::array<int, 4> kShifts = {1, 3, 5, 15};
  std::vector<HistoryRun> runs;
  std::int32_t tile = 0;
  for (Position p = 0; p < 300; p += length) {
    const std::int32_t lane = (p + kShifts[runs.size() % 4]) % 16;
    runs.push_back({p, tile + lane, std::min(length, 300 - p)});
    tile += (lane + length + 15) / 16 * 16;
  }
  return {runs};
}

class AttentionBlockSums : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionBlockSums, MatchTheChainForAnyCells) {
  for (const Runs& runs : {FarCells(), Shifted(41), Shifted(7), Scattered(1)}) {
    for (const auto& [tokens, group] : kRows) {
      const Scene scene = FilledScene({{1, 32, 64}, group, DType::kQ8_0, GetParam()}, runs);
      ExpectTheChain(scene, LastTokens(scene, tokens), {.window = 290});
    }
  }
}

TEST_P(AttentionBlockSums, MatchTheChainForAnyShape) {
  for (const KvShape& shape :
       {KvShape{2, 64, 32}, KvShape{1, 32, 96}, KvShape{1, 96, 256}, KvShape{2, 160, 64}}) {
    for (const auto& [tokens, group] : kFewAndMany) {
      const Scene scene = FilledScene({shape, group * shape.kv_heads, DType::kQ8_0, GetParam()},
                                      Scene::Contiguous({300}));
      ExpectTheChain(scene, LastTokens(scene, tokens), {});
    }
  }
}

// --- Large sums

struct Magnitude {
  DType type;
  int code;
  float scale;
  bool alternate;  // code and scale change their signs at every other position
};

// The unit of a scale of 127 · 2^n is a power of two, so that nothing is rounded.
constexpr float kScale = 127.0f * 0x1p-9f;
constexpr Magnitude kMagnitudes[] = {
    {DType::kQ8_0, 127, kScale, false}, {DType::kQ8_0, -127, kScale, false},
    {DType::kQ8_0, 127, -kScale, true}, {DType::kQ8_0, -128, kScale, false},
    {DType::kQ4_0, -8, kScale, false},  {DType::kQ4_0, -8, -kScale, false},
    {DType::kQ4_0, 7, kScale, false},   {DType::kQ4_0, 7, -kScale, true},
};

// 256 equal weights of equal values, all as large as possible.
TEST(AttentionBlockMagnitudes, LargestSumsAreExact) {
  for (const Magnitude& m : kMagnitudes) {
    for (const auto& [tokens, group] : kRows) {
      const Scene scene =
          FilledScene({{1, 32, 64}, group, DType::kQ8_0, m.type}, Scene::Contiguous({256}));
      ForEachValue(scene, 0, [&](int head, std::int64_t cell, Position p, int d) {
        const int sign = m.alternate && p % 2 != 0 ? -1 : 1;
        SetValueScale(scene.layer(), head, cell, d, static_cast<float>(sign) * m.scale);
        SetValueCode(scene.layer(), head, cell, d, sign * m.code);
      });
      const std::vector<QueryAt> batch(static_cast<std::size_t>(tokens), QueryAt{0, 255});
      const std::vector<float> value(batch.size() * static_cast<std::size_t>(group * 64),
                                     m.scale * static_cast<float>(m.code));
      OnEveryTarget(scene, batch, EqualScores(),
                    [&](const std::string&, const std::vector<float>& out) {
                      EXPECT_TRUE(SameBits(out, value)) << m.code << " " << m.scale;
                    });
      ExpectTheChain(scene, batch, EqualScores());
    }
  }
}

// --- Combinations of weights and scales

// The scale of block d / 32 of a position.
struct Scales {
  const char* name;
  float (*of)(Position p, int d);
};

constexpr float kSubnormal = 0x1p-24f;
constexpr float kLarge = 65504.0f;
const Scales kScales[] = {
    {"subnormal", [](Position p, int) { return kSubnormal * static_cast<float>(1 + p % 5); }},
    {"subnormal_by_large", [](Position p, int) { return p % 3 == 0 ? 100.0f : kSubnormal; }},
    {"one_large", [](Position p, int d) { return p % 97 == d / 32 ? kLarge : 0.01f; }},
    {"negative", [](Position p, int d) { return (p + d / 32) % 2 == 0 ? -0.5f : 0.25f; }},
    {"negative_subnormal", [](Position p, int) { return p % 3 == 0 ? kSubnormal : -kSubnormal; }},
    {"zeros", [](Position, int) { return 0.0f; }},
    {"one_block_of_zeros",
     [](Position p, int d) { return d < 32       ? 0.0f
                                    : p % 7 == 0 ? 0.3f
                                                 : 0.01f; }},
    // With equal weights every code but the largest is between two integers.
    {"ties",
     [](Position p, int) {
       return p % 50 == 10 ? kScale : 0x1p-18f * static_cast<float>(2 * (p % 9) + 1);
     }},
    // A query's own position has the largest weight of all, and no values.
    {"nothing_at_the_end", [](Position p, int) { return p < 264 ? kSubnormal : 0.0f; }},
};

// exp(-100) is a weight of 0; exp(-80) leaves a product with the smallest scale subnormal; exp(-60)
// makes a unit that just has an inverse, exp(-62) one that just has none.
std::vector<Rules> Weighings(int heads) {
  std::vector<Rules> weighings = {EqualScores(), {.scale = 3.0f}, {.scale = 40.0f}};
  for (const float down : {60.0f, 62.0f, 80.0f, 100.0f}) {
    weighings.push_back(OwnPositionAbove(down, heads));
  }
  return weighings;
}

TEST_P(AttentionBlockSums, MatchTheChainForAnyScales) {
  for (const auto& [tokens, group] : kFewAndMany) {
    const Scene scene =
        FilledScene({{1, 32, 64}, group, DType::kQ8_0, GetParam()}, {{{190, 3, 110}}});
    const std::vector<QueryAt> batch = LastTokens(scene, tokens);
    for (const Scales& scales : kScales) {
      ForEachValue(scene, 0, [&](int head, std::int64_t cell, Position p, int d) {
        SetValueScale(scene.layer(), head, cell, d, scales.of(p, d));
      });
      for (const Rules& rules : Weighings(group)) {
        SCOPED_TRACE(std::string(scales.name) + ", scale " + std::to_string(rules.scale));
        ExpectTheChain(scene, batch, rules);
      }
    }
  }
}

// --- NaNs and infinities

// Two sequences that share every tile, eight cells each at a time.
Runs SharedTiles() {
  Runs runs(2);
  for (Position p = 0; p < 320; p += 8) {
    runs[0].push_back({p, 2 * p, 8});
    runs[1].push_back({p, 2 * p + 8, 8});
  }
  return runs;
}

// Expects `before`, except that the rows that weigh the bad block of values have NaN there.
template <class Weighs>
void ExpectNanIn(const std::vector<float>& out, const std::vector<float>& before,
                 const Scene& scene, const std::vector<QueryAt>& batch, int block,
                 const Weighs& weighs) {
  const auto v_dim = static_cast<std::size_t>(scene.options().shape.v_dim);
  const auto heads = static_cast<std::size_t>(scene.options().heads);
  std::vector<float> others = out;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const QueryAt& query = batch[i / (v_dim * heads)];
    if (static_cast<int>(i % v_dim / kKvBlock) != block || !weighs(query)) continue;
    EXPECT_TRUE(std::isnan(out[i])) << query.position << ", value " << i % v_dim;
    others[i] = before[i];
  }
  EXPECT_TRUE(SameBits(others, before));
}

struct BadScale {
  Rules rules;
  float scale;
};

// One position is bad in one block, and all of the other sequence in all blocks. Queries before the
// position do not see it; with a window, later ones do not either; with the bias, they see it and
// weigh it with 0.
TEST_P(AttentionBlockSums, OnlyVisibleNansGiveNan) {
  constexpr int kBlock = 1;
  constexpr Position kPosition = 284;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& [tokens, group] : kFewAndMany) {
    const Position first = kPosition - tokens / 4;
    const std::vector<QueryAt> batch = Range(0, first, first + tokens);
    for (const auto& [rules, bad] :
         {BadScale{{}, std::numeric_limits<float>::quiet_NaN()}, BadScale{{}, kInfinity},
          BadScale{{.window = 2}, std::numeric_limits<float>::quiet_NaN()},
          BadScale{OwnPositionAbove(100.0f, group), -kInfinity}}) {
      const Scene scene =
          FilledScene({{1, 32, 96}, group, DType::kQ8_0, GetParam()}, SharedTiles());
      const BothChains before(scene, batch, rules);
      ForEachValue(scene, 1, [&, scale = bad](int head, std::int64_t cell, Position, int d) {
        SetValueScale(scene.layer(), head, cell, d, scale);
      });
      SetValueScale(scene.layer(), 0, scene.CellOf(0, kPosition), kBlock * 32, bad);
      const auto weighs = [&, rules = rules](const QueryAt& query) {
        return rules.bias.empty() ? Sees(scene, rules, query, kPosition)
                                  : query.position == kPosition;
      };
      OnEveryTarget(scene, batch, rules,
                    [&](const std::string& target, const std::vector<float>& out) {
                      ExpectNanIn(out, before.Of(target), scene, batch, kBlock, weighs);
                    });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionBlockSums, ::testing::ValuesIn(kTypes),
                         [](const auto& test) { return std::string(InfoOf(test.param).name); });

}  // namespace
}  // namespace kvcache::cpu::sums_test
