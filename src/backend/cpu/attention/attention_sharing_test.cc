// Checks histories that share cells: copies of sequences, and trees, in which every path from the
// root to a leaf is a history. Shared cells are read once, and results do not depend on that.
#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_chain_testing.h"
#include "backend/cpu/attention/attention_plan.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"
#include "kvcache/cpu_backend.h"
#include "support/internal/tile_emulator.h"

namespace kvcache::cpu::attention_sharing_test {
namespace {

using Runs = std::vector<HistoryRun>;

// Returns the positions of `runs` up to `end`, then one run of `more` in cells from `cell`.
Runs Fork(const Runs& runs, Position end, std::int32_t cell, std::int32_t more) {
  Runs fork;
  for (const HistoryRun& run : runs) {
    if (run.position >= end) break;
    fork.push_back({run.position, run.cell, std::min(run.length, end - run.position)});
  }
  if (more > 0) fork.push_back({end, cell, more});
  return fork;
}

// Returns histories that fork inside splits, at their ends and after other forks. One has a hole in
// the shared part and one after it, two are identical, one is a prefix of another, one shares
// nothing, and one is empty.
std::vector<Runs> Forks() {
  const Runs trunk = {{0, 3, 150}, {200, 1700, 440}, {640, 300, 460}};
  const Runs early = Fork(trunk, 300, 900, 400);
  std::vector<Runs> all = {trunk,
                           Fork(trunk, 1024, 1400, 30),
                           early,
                           Fork(trunk, 1090, 1440, 12),
                           trunk,
                           Fork(early, 512, 1460, 100),
                           Fork(early, 699, 1580, 1),
                           Fork(trunk, 1000, 0, 0),
                           {{0, 2200, 900}},
                           {}};
  Runs hole = Fork(trunk, 768, 0, 0);
  hole.push_back({800, 1600, 90});
  all.push_back(hole);
  return all;
}

// Returns the last `tokens` positions of each history.
std::vector<QueryAt> LastOf(const std::vector<Runs>& histories, int tokens) {
  std::vector<QueryAt> batch;
  for (int i = 0; i < tokens; ++i) {
    for (std::size_t s = 0; s < histories.size(); ++s) {
      const Position end =
          histories[s].empty() ? 9 : histories[s].back().position + histories[s].back().length;
      batch.push_back({static_cast<int>(s), std::max(end - 1 - i, 0), i % 3 == 2});
    }
  }
  return batch;
}

struct RulesCase {
  const char* name;
  Rules rules;
};

const RulesCase kRules[] = {
    {"causal", {}},
    {"window_40", {.window = 40}},
    {"window_300", {.window = 300}},
    {"chunk_100", {.chunk = 100}},
    {"chunk_512", {.chunk = 512}},
    {"everything",
     {.window = 700, .chunk = 768, .soft_cap = 5.0f, .sinks = {0.1f, 0.2f, -0.3f, 4.0f}}},
};

const SceneOptions kKept[] = {
    {{2, 32, 48}, 4, DType::kF16, DType::kF32, KvLayout::kTiled},
    {{2, 32, 48}, 4, DType::kF16, DType::kF32, KvLayout::kPlain},
    {{1, 48, 36, true}, 4, DType::kBF16, DType::kBF16, KvLayout::kTiled},
    {{2, 32, 64}, 4, DType::kQ8_0, DType::kQ4_0, KvLayout::kTiled},
    {{2, 96, 32}, 4, DType::kQ4_0, DType::kF16, KvLayout::kTiled},
};

class AttentionSharing : public ::testing::TestWithParam<RulesCase> {};

// 1 and 6 tokens of a sequence are decode, which shares; 40 are prefill.
TEST_P(AttentionSharing, MatchesTheChain) {
  const auto one = CpuWithThreads(1);
  const auto three = CpuWithThreads(3);
  for (const SceneOptions& kept : kKept) {
    Scene scene(kept, Forks());
    scene.Fill(*one);
    for (const int tokens : {1, 6, 40}) {
      if (tokens == 40 && &kept != kKept) continue;
      const std::vector<QueryAt> batch = LastOf(scene.runs(), tokens);
      const std::vector<float> expected = ChainOf(scene, batch, GetParam().rules);
      for (Backend* const backend : {one.get(), three.get()}) {
        EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, GetParam().rules), expected))
            << tokens << " " << (backend == one.get() ? 1 : 3) << " " << InfoOf(kept.k_type).name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, AttentionSharing, ::testing::ValuesIn(kRules),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(AttentionSharingTargets, MatchTheChain) {
  for (const std::string& target : kvcache::testing::TestedTargets()) {
    const testing::ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok());
    const auto backend = CpuWithThreads(2);
    for (const DType type : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0, DType::kQ4_0}) {
      Scene scene({{1, 64, 32}, 3, type, type}, Forks());
      scene.Fill(*backend);
      const std::vector<QueryAt> batch = LastOf(scene.runs(), 2);
      EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, {}),
                           ChainOf(scene, batch, {}, {.fused = target != "EMU128"})))
          << target << " " << InfoOf(type).name;
    }
  }
}

// A tree of drafts after a history: token i follows token parent[i], or the history. Every token's
// path is a history with one query, the token itself.
struct Tree {
  std::vector<int> parent;
  std::vector<Runs> paths;
  std::vector<QueryAt> batch;
};

// Returns a tree of `size` tokens in cells from `cell`, in any order.
Tree RandomTree(const Runs& history, int size, std::int32_t cell, std::mt19937& random) {
  Tree tree;
  std::vector<std::int32_t> cells;
  for (int i = 0; i < size; ++i) cells.push_back(cell + i);
  std::shuffle(cells.begin(), cells.end(), random);
  const Position end = history.back().position + history.back().length;
  for (int i = 0; i < size; ++i) {
    tree.parent.push_back(static_cast<int>(random() % static_cast<unsigned>(i + 1)) - 1);
    const int parent = tree.parent.back();
    Runs path = parent < 0 ? history : tree.paths[static_cast<std::size_t>(parent)];
    const Position position =
        parent < 0 ? end : tree.batch[static_cast<std::size_t>(parent)].position + 1;
    path.push_back({position, cells[static_cast<std::size_t>(i)], 1});
    tree.paths.push_back(path);
    tree.batch.push_back({i, position});
  }
  return tree;
}

// Each token of a tree has the same result as in a history that is only its path.
TEST(AttentionTrees, ATokenSeesOnlyItsPath) {
  std::mt19937 random(7);
  const auto backend = CpuWithThreads(2);
  for (const int length : {1, 250, 700, 1023}) {
    for (const SceneOptions& kept : kKept) {
      const Runs history = {{0, 64, length}};
      const Tree tree = RandomTree(history, 21, 1200, random);
      Scene scene(kept, tree.paths);
      scene.Fill(*backend);
      for (const Rules& rules : {Rules{}, Rules{.window = 260}}) {
        const std::vector<float> at_once = Attend(*backend, scene, tree.batch, rules);
        std::vector<float> alone;
        for (const QueryAt& query : tree.batch) {
          const std::vector<float> out = Attend(*backend, scene, {query}, rules);
          alone.insert(alone.end(), out.begin(), out.end());
        }
        EXPECT_TRUE(SameBits(at_once, alone)) << length << " " << InfoOf(kept.k_type).name;
        EXPECT_TRUE(SameBits(at_once, ChainOf(scene, tree.batch, rules))) << length;
      }
    }
  }
}

// A sibling is in the same tile of cells; its content must not affect other tokens.
TEST(AttentionTrees, SiblingsNeverMatter) {
  const auto backend = CpuWithThreads(2);
  for (const int tokens : {2, 30}) {
    const Runs history = {{0, 0, 520}};
    std::vector<Runs> paths;
    std::vector<QueryAt> batch;
    for (int i = 0; i < tokens; ++i) {
      paths.push_back(Fork(history, 520, 520 + i, 1));
      batch.push_back({i, 520});
    }
    Scene scene({{1, 16, 24}, 2, DType::kF32, DType::kF32}, paths);
    scene.Fill(*backend);
    const std::vector<float> expected = Attend(*backend, scene, batch, {});
    const float infinity = std::numeric_limits<float>::infinity();
    std::fill_n(reinterpret_cast<float*>(scene.layer().v) + 521 * 24, 24, infinity);
    const std::vector<float> out = Attend(*backend, scene, batch, {});
    const std::size_t row = expected.size() / batch.size();
    EXPECT_FALSE(std::isfinite(out[row]));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (i / row == 1) continue;
      ASSERT_EQ(out[i], expected[i]) << i;
    }
  }
}

// --- Number of reads

struct PlanCase {
  std::vector<Runs> histories;
  std::vector<QueryAt> batch;
  std::int32_t window = 0;
  std::int32_t chunk = 0;
  int threads = 2;
  LayerKv layer = {.shape = {8, 128, 128},
                   .k_type = DType::kF16,
                   .v_type = DType::kF16,
                   .layout = KvLayout::kTiled,
                   .cells = 1 << 20};
  int group = 4;
};

AttentionPlan PlanOf(const PlanCase& c) {
  std::vector<Position> positions;
  std::vector<std::int32_t> index;
  for (const QueryAt& query : c.batch) {
    positions.push_back(query.position);
    index.push_back(query.sequence);
  }
  const std::vector<std::span<const HistoryRun>> spans(c.histories.begin(), c.histories.end());
  AttentionPlan plan;
  plan.Build(c.layer, c.group, c.threads,
             {.positions = positions,
              .history_of_query = index,
              .histories = spans,
              .bidirectional = {},
              .window = c.window,
              .chunk = c.chunk});
  return plan;
}

AttentionPlan PlanOf(const std::vector<Runs>& histories, int tokens, std::int32_t window = 0) {
  return PlanOf({histories, LastOf(histories, tokens), window});
}

// Returns the largest number of sequences that read a split together.
int Together(const AttentionPlan& plan) {
  std::int32_t max = 0;
  for (const PrefixNode& node : plan.nodes()) max = std::max(max, node.sequences);
  return max;
}

std::vector<Runs> Siblings(Position shared, int count) {
  std::vector<Runs> histories;
  for (int i = 0; i < count; ++i) {
    histories.push_back({{0, 0, shared}, {shared, 100000 + 32 * i, 5}});
  }
  return histories;
}

TEST(AttentionPlan, SharedSplitsAreReadOnce) {
  // There are 39 shared splits, and each history has the split in which they diverge.
  EXPECT_EQ(PlanOf(Siblings(10000, 8), 1).splits().size(), 39u + 8u);
  EXPECT_EQ(PlanOf(Siblings(10000, 8), 5).splits().size(), 39u + 8u);
  EXPECT_EQ(PlanOf(Siblings(10240, 8), 1).splits().size(), 40u + 8u);
  // Queries at 10,003 and 10,004 see positions from 9,004 on, which is in the split of 8,960.
  EXPECT_EQ(PlanOf(Siblings(10000, 8), 2, 1000).splits().size(), 4u + 8u);
  EXPECT_EQ(PlanOf(Siblings(200, 8), 1).splits().size(), 8u);
  EXPECT_EQ(PlanOf(Siblings(10000, 1), 1).splits().size(), 40u);
}

TEST(AttentionPlan, ForksOfForksAreReadOnceEach) {
  const Runs trunk = {{0, 0, 2560}};
  const Runs left = Fork(trunk, 1024, 5000, 1536);
  const std::vector<Runs> histories = {
      trunk, Fork(trunk, 2048, 9000, 10), left, Fork(left, 2304, 9100, 10), {{0, 20000, 512}}};
  const AttentionPlan plan = PlanOf(histories, 1);
  // All but the last share 4. The first two share 4 more and have 2 + 1 of their own; the next two
  // share 5 more and have 1 + 1. The last one has 2.
  EXPECT_EQ(plan.splits().size(), 4u + (4u + 2u + 1u) + (5u + 1u + 1u) + 2u);
  EXPECT_EQ(plan.nodes().size(), 8u);
}

// Each split reads the queries of all its rows, so the number of rows that read together is
// limited.
TEST(AttentionPlan, RowsThatShareAreBounded) {
  const AttentionPlan plan = PlanOf(Siblings(10000, 600), 1);
  EXPECT_EQ(plan.decode_rows(), 256);
  EXPECT_EQ(plan.splits().size(), 39u * 10 + 600u);  // 64 sequences of 4 rows, ten times
  // A group consists of all sequences that share more: 50 and 50, not 64 and 36.
  std::vector<Runs> histories;
  for (int trunk = 0; trunk < 2; ++trunk) {
    const Runs runs = {{0, 0, 2560}, {2560, 10000 + 10000 * trunk, 2560}};
    for (int i = 0; i < 50; ++i) {
      histories.push_back(Fork(runs, 5120, 40000 + 64 * (50 * trunk + i), 9));
    }
  }
  const AttentionPlan halves = PlanOf(histories, 1);
  EXPECT_EQ(halves.splits().size(), 2u * 20 + 100u);
}

// One split of all rows is the smallest task: with many threads there must be enough of them.
TEST(AttentionPlan, ManyThreadsShareLess) {
  std::vector<Runs> histories;
  for (int i = 0; i < 128; ++i) histories.push_back({{0, 0, 256}, {256, 1000 + 64 * i, 44}});
  PlanCase c{histories, LastOf(histories, 1)};
  EXPECT_EQ(Together(PlanOf(c)), 64);
  c.threads = 64;
  EXPECT_LE(Together(PlanOf(c)), 8);
}

// Each split behind a shared prefix leaves a partial result, so sharing a short prefix does not
// pay.
TEST(AttentionPlan, ShortPrefixesOfLongHistoriesAreReadByEachOne) {
  std::vector<Runs> histories;
  for (int i = 0; i < 16; ++i) histories.push_back({{0, 0, 256}, {256, 20000 + 33000 * i, 32768}});
  const AttentionPlan plan = PlanOf(histories, 1);
  EXPECT_EQ(Together(plan), 1);
  // There is at most one partial result for each task of each head.
  EXPECT_LE(plan.partial_floats(), 2 * 16 * 8 * 4 * PartialStride(128));
  for (Runs& runs : histories) runs = Fork(runs, 8192, 0, 0);
  EXPECT_EQ(Together(PlanOf(histories, 1)), 1);
  for (int i = 0; i < 16; ++i) {
    histories[static_cast<std::size_t>(i)] = {{0, 0, 8192}, {8192, 20000 + 33000 * i, 8192}};
  }
  EXPECT_EQ(Together(PlanOf(histories, 1)), 16);
}

// 64 histories of 64k tokens behind 16k shared ones would leave 300 MB of partial results.
TEST(AttentionPlan, PartialResultsAreBounded) {
  std::vector<Runs> histories;
  for (int i = 0; i < 64; ++i)
    histories.push_back({{0, 0, 16384}, {16384, 65536 * (i + 1), 65536}});
  EXPECT_EQ(Together(PlanOf(histories, 1)), 1);
  histories.resize(16);
  const AttentionPlan plan = PlanOf(histories, 1);
  EXPECT_EQ(Together(plan), 16);
  EXPECT_LE(plan.partial_floats() * 4, 256 << 20);
}

// Holes in both histories are not shared, and no sequence reads positions that it does not see.
TEST(AttentionPlan, InvisiblePositionsAreNotShared) {
  EXPECT_EQ(Together(PlanOf({{{4000, 0, 100}}, {{8000, 5000, 100}}}, 1, 90)), 1);
  EXPECT_EQ(Together(PlanOf({{}, {{8000, 5000, 100}}}, 1)), 1);
  const Runs trunk = {{0, 0, 30000}};
  const std::vector<Runs> histories = {trunk, Fork(trunk, 20000, 40000, 11)};
  EXPECT_EQ(Together(PlanOf({histories, {{0, 29999}, {1, 20010}}})), 2);
  const AttentionPlan chunked = PlanOf({histories, {{0, 29999}, {1, 20010}}, 0, 8192});
  EXPECT_EQ(Together(chunked), 1);
  EXPECT_EQ(chunked.splits().size(), 22u + 15u);
}

// Sequences of many rows are bound by arithmetic. They are prefill tasks, and do not separate other
// sequences that share.
TEST(AttentionPlan, SequencesOfManyRowsArePrefill) {
  for (const int tokens : {9, 60, 150, 300}) {
    const AttentionPlan plan = PlanOf(Siblings(10000, 2), tokens);
    EXPECT_EQ(plan.sequences().size(), 2u);
    for (const SequencePlan& sequence : plan.sequences()) EXPECT_FALSE(sequence.decode) << tokens;
  }
  const Runs trunk = {{0, 0, 10000}};
  const std::vector<Runs> histories = {Fork(trunk, 9000, 20000, 5), Fork(trunk, 9000, 20100, 600),
                                       Fork(trunk, 9000, 20800, 5)};
  std::vector<QueryAt> batch = Range(1, 9000, 9600);
  batch.push_back({0, 9004});
  batch.push_back({2, 9004});
  EXPECT_EQ(Together(PlanOf({histories, batch})), 2);
}

// Checks that the scenes which are compared with the chain do share.
TEST(AttentionPlan, ForksShare) {
  for (const SceneOptions& kept : kKept) {
    if (kept.layout != KvLayout::kTiled) continue;
    for (const int threads : {1, 3}) {
      const Scene scene(kept, Forks());
      const AttentionPlan plan = PlanOf({.histories = Forks(),
                                         .batch = LastOf(Forks(), 1),
                                         .threads = threads,
                                         .layer = scene.layer(),
                                         .group = kept.heads / kept.shape.kv_heads});
      const auto several = std::count_if(plan.nodes().begin(), plan.nodes().end(),
                                         [](const PrefixNode& node) { return node.sequences > 1; });
      EXPECT_GE(several, 3) << InfoOf(kept.k_type).name << " " << threads;
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu::attention_sharing_test
