// Checks the keys that a query attends to: windows, chunks, images, sinks, caps, holes, no keys at
// all.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_chain_testing.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"
#include "support/internal/tile_emulator.h"

namespace kvcache::cpu::attention_visibility_test {
namespace {

struct RulesCase {
  const char* name;
  Rules rules;
};

// Returns the rules with a different bias for each of four heads.
Rules WithBias(Rules rules, int past, int future) {
  rules.past = past;
  rules.future = future;
  for (int i = 0; i < 4 * (past + 1 + future); ++i) {
    rules.bias.push_back(3.0f * HashValue(9, i, past, future));
  }
  return rules;
}

const RulesCase kRules[] = {
    {"causal", {}},
    {"window_1", {.window = 1}},
    {"window_5", {.window = 5}},
    {"window_256", {.window = 256}},
    {"window_300", {.window = 300}},
    {"window_beyond", {.window = 100000}},
    {"chunk_64", {.chunk = 64}},
    {"chunk_100", {.chunk = 100}},
    {"chunk_and_window", {.window = 40, .chunk = 300}},
    {"soft_cap", {.soft_cap = 2.0f}},
    {"large_scores", {.scale = 12.0f}},
    {"capped_large_scores", {.scale = 12.0f, .soft_cap = 30.0f}},
    {"sinks", {.sinks = {0.5f, -3.0f, 20.0f, -std::numeric_limits<float>::infinity()}}},
    {"biased", WithBias({}, 30, 7)},
    {"biased_from_behind", WithBias({.window = 120}, 128, 0)},
    {"biased_ahead", WithBias({.soft_cap = 3.0f}, 0, 300)},
    {"everything",
     {.window = 270, .chunk = 512, .soft_cap = 5.0f, .sinks = {0.1f, 0.2f, -0.3f, 4.0f}}},
};

// Sequence 0 has a hole, sequence 1 begins late, sequence 2 is empty.
std::vector<std::vector<HistoryRun>> WithHoles() {
  return {
      {{0, 5, 130}, {180, 200, 20}, {230, 400, 370}}, {{1000, 1005, 100}, {1500, 1200, 40}}, {}};
}

std::vector<QueryAt> Batch(int tokens) {
  std::vector<QueryAt> batch;
  for (int i = 0; i < tokens; ++i) {
    batch.push_back({0, 599 - i, i % 5 == 2});
    batch.push_back({1, 1539 - i, i % 7 == 3});
  }
  batch.push_back({2, 8});
  return batch;
}

class AttentionRules : public ::testing::TestWithParam<RulesCase> {};

const SceneOptions kKept[] = {
    {{2, 32, 48}, 4, DType::kF16, DType::kF32, KvLayout::kTiled},
    {{2, 32, 48}, 4, DType::kF16, DType::kF32, KvLayout::kPlain},
    {{2, 48, 36, true}, 4, DType::kF16, DType::kF32, KvLayout::kTiled},
    {{2, 48, 36, true}, 4, DType::kF16, DType::kF32, KvLayout::kPlain},
    {{2, 32, 64}, 4, DType::kQ8_0, DType::kQ4_0, KvLayout::kTiled},
    {{2, 96, 32}, 4, DType::kQ4_0, DType::kQ8_0, KvLayout::kTiled},
};

TEST_P(AttentionRules, MatchTheChain) {
  const auto backend = CpuWithThreads(2);
  for (const SceneOptions& kept : kKept) {
    Scene scene(kept, WithHoles());
    scene.Fill(*backend);
    for (const int tokens : {1, 6, 50}) {
      const std::vector<QueryAt> batch = Batch(tokens);
      EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, GetParam().rules),
                           ChainOf(scene, batch, GetParam().rules)))
          << tokens << " " << InfoOf(kept.k_type).name << " " << kept.shape.k_dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, AttentionRules, ::testing::ValuesIn(kRules),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(AttentionVisibility, NothingVisibleGivesZeros) {
  const auto backend = CpuWithThreads(2);
  Scene scene({{1, 16, 24}, 2, DType::kF16, DType::kF16}, {{{50, 0, 30}}, {}});
  scene.Fill(*backend);
  const Rules rules{.sinks = {1.0f, 2.0f}};
  for (const std::size_t tokens : {1u, 40u}) {
    std::vector<QueryAt> batch(tokens, QueryAt{0, 20});
    batch.resize(2 * tokens, QueryAt{1, 20});
    const std::vector<float> out = Attend(*backend, scene, batch, rules);
    EXPECT_TRUE(SameBits(out, std::vector<float>(out.size(), 0.0f)));
  }
}

// An infinite value of a later token of the batch must not affect other tokens.
TEST(AttentionVisibility, UnseenValuesNeverMatter) {
  const auto backend = CpuWithThreads(2);
  for (const int tokens : {3, 60}) {
    Scene scene({{1, 16, 24}, 2, DType::kF32, DType::kF32}, Scene::Contiguous({300}));
    scene.Fill(*backend);
    std::vector<QueryAt> batch;
    for (int i = 0; i < tokens; ++i) batch.push_back({0, 298 - i});
    const std::vector<float> expected = Attend(*backend, scene, batch, {});
    const float infinity = std::numeric_limits<float>::infinity();
    auto* const values = reinterpret_cast<float*>(scene.layer().v);
    std::fill_n(values + 299 * 24, 24, infinity);
    EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, {}), expected));
    batch.push_back({0, 299});
    const std::vector<float> out = Attend(*backend, scene, batch, {});
    EXPECT_FALSE(std::isfinite(out.back()));
    EXPECT_TRUE(SameBits({out.begin(), out.begin() + static_cast<std::ptrdiff_t>(expected.size())},
                         expected));
  }
}

// Runs every target of this machine. Targets with fused multiply-add agree with each other; the
// portable one rounds products first.
TEST(AttentionTargets, MatchTheChain) {
  for (const std::string& target : kvcache::testing::TestedTargets()) {
    const testing::ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok());
    const bool fused = target != "EMU128";
    const auto backend = CpuWithThreads(2);
    const Rules rules{.soft_cap = 3.0f, .sinks = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f}};
    for (const DType type : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0, DType::kQ4_0}) {
      const bool blocks = type == DType::kQ8_0 || type == DType::kQ4_0;
      for (const bool v_in_k : {false, true}) {
        if (type == DType::kQ4_0 && v_in_k) continue;
        const KvShape shape = blocks   ? KvShape{2, v_in_k ? 160 : 64, 96, v_in_k}
                              : v_in_k ? KvShape{2, 56, 43, true}
                                       : KvShape{2, 40, 72};
        Scene scene({shape, 6, type, type}, WithHoles());
        scene.Fill(*backend);
        for (const int tokens : {1, 2, 20}) {
          const std::vector<QueryAt> batch = Batch(tokens);
          EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, rules),
                               ChainOf(scene, batch, rules, {.fused = fused})))
              << target << " " << InfoOf(type).name << " " << tokens << " v_in_k " << v_in_k;
        }
      }
    }
  }
}

struct ErrorCase {
  const char* name;
  TensorView q;
  TensorView out;
  std::size_t sinks;
  std::size_t positions;
  std::int32_t run_cell;
  const char* message;  // a part of the message, with both values
};

TEST(AttentionErrors, NameBothSides) {
  const auto backend = CpuWithThreads(1);
  Scene scene({{2, 8, 16}, 4, DType::kF16, DType::kF16}, Scene::Contiguous({32}));
  std::vector<float> memory(1024);
  const auto view = [&](std::int64_t d, std::int64_t heads, std::int64_t batch) {
    return TensorView::Dense(memory.data(), DType::kF32, d, heads, batch);
  };
  TensorView f16 = view(8, 4, 3);
  f16.dtype = DType::kF16;
  const ErrorCase cases[] = {
      {"k_dim", view(9, 4, 3), view(16, 4, 3), 0, 3, 0, "size 9; must be the cache's k_dim, 8"},
      {"v_dim", view(8, 4, 3), view(8, 4, 3), 0, 3, 0, "size 8; must be the cache's v_dim, 16"},
      {"heads", view(8, 3, 3), view(16, 3, 3), 0, 3, 0,
       "3 heads; must be a multiple of the cache's kv_heads, 2"},
      {"batch", view(8, 4, 3), view(16, 4, 2), 0, 3, 0,
       "out is [16, 4, 2]; must have the heads and tokens of q, [8, 4, 3]"},
      {"dtype", f16, view(16, 4, 3), 0, 3, 0, "q is f16 [8, 4, 3]; must be dense f32"},
      {"sinks", view(8, 4, 3), view(16, 4, 3), 2, 3, 0,
       "sinks has 2 values; must have one for each of the 4 heads of q"},
      {"positions", view(8, 4, 3), view(16, 4, 3), 0, 2, 0,
       "positions has 2 entries; must have one for each of the 3 tokens of q"},
      {"cells", view(8, 4, 3), view(16, 4, 3), 0, 3, 20,
       "begins at cell 20; must be within the 32 cells of the layer"},
  };
  for (const ErrorCase& c : cases) {
    const std::vector<Position> positions(c.positions, 1);
    const std::vector<std::int32_t> index(3, 0);
    const std::vector<float> sinks(c.sinks, 0.0f);
    const std::vector<HistoryRun> runs = {{0, c.run_cell, 13}};
    const std::vector<std::span<const HistoryRun>> histories = {runs};
    const Status status = backend->Attention(scene.layer(), c.q,
                                             {.positions = positions,
                                              .history_of_query = index,
                                              .histories = histories,
                                              .bidirectional = {}},
                                             {.sinks = sinks}, c.out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.name;
    EXPECT_NE(status.message().find(c.message), std::string::npos)
        << c.name << ": " << status.message();
  }
}

TEST(AttentionErrors, RunsEndAtTheLastPosition) {
  const auto backend = CpuWithThreads(1);
  for (const bool past : {false, true}) {
    Scene scene({{1, 8, 8}, 1, DType::kF16, DType::kF16}, Scene::Contiguous({32}));
    scene.Fill(*backend);
    std::vector<float> memory(16, 1.0f);
    const std::vector<Position> positions = {kEndOfSequence - 1};
    const std::vector<std::int32_t> index = {0};
    const std::vector<HistoryRun> runs = {{kEndOfSequence - 20, 0, past ? 21 : 20}};
    const std::vector<std::span<const HistoryRun>> histories = {runs};
    const Status status =
        backend->Attention(scene.layer(), TensorView::Dense(memory.data(), DType::kF32, 8, 1),
                           {.positions = positions,
                            .history_of_query = index,
                            .histories = histories,
                            .bidirectional = {}},
                           {}, TensorView::Dense(memory.data() + 8, DType::kF32, 8, 1));
    EXPECT_EQ(status.ok(), !past) << status.message();
    EXPECT_EQ(memory[8] == 1.0f, past) << "exactly a refused call must leave the output unchanged";
    if (past) {
      EXPECT_EQ(status.message(),
                "attention: history 0: run of 21 at position 2147483627; must end by the last "
                "position, 2147483646");
    }
  }
}

TEST(AttentionErrors, BiasesFitTheHeads) {
  const auto backend = CpuWithThreads(1);
  Scene scene({{2, 8, 16}, 4, DType::kF16, DType::kF16}, Scene::Contiguous({32}));
  std::vector<float> memory(1024);
  const std::vector<Position> positions = {1};
  const std::vector<std::int32_t> index = {0};
  const std::vector<std::span<const HistoryRun>> histories = {scene.runs()[0]};
  const Visibility visibility{.positions = positions,
                              .history_of_query = index,
                              .histories = histories,
                              .bidirectional = {}};
  const auto attend = [&](std::size_t values, int past, int future) {
    return backend
        ->Attention(scene.layer(), TensorView::Dense(memory.data(), DType::kF32, 8, 4), visibility,
                    {.bias = {std::span(memory).first(values), past, future}},
                    TensorView::Dense(memory.data() + 512, DType::kF32, 16, 4))
        .message();
  };
  EXPECT_EQ(attend(24, 3, 2), "");
  EXPECT_EQ(attend(23, 3, 2),
            "attention: bias has 23 values for past 3 and future 2; must have 4 heads × (past + 1 "
            "+ future), with at most 16777216 distances");
  EXPECT_EQ(attend(4, 1, -1),
            "attention: bias has 4 values for past 1 and future -1; must have 4 heads × (past + 1 "
            "+ future), with at most 16777216 distances");
}

TEST(AttentionErrors, TypesWithoutKernelsAreRefused) {
  const auto backend = CpuWithThreads(1);
  EXPECT_TRUE(backend->CheckKvTypes(DType::kF16, DType::kBF16, KvLayout::kTiled).ok());
  const Status status = backend->CheckKvTypes(DType::kQ5_0, DType::kF16, KvLayout::kTiled);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("q5_0"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace kvcache::cpu::attention_visibility_test
