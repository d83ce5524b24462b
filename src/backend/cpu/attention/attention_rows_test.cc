// Compares decode attention with several queries of a sequence with the documented chain, as bytes: any number of rows
// of a KV head, for every target of this machine.
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_chain_testing.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"

namespace kvcache::cpu::rows_test {
namespace {

constexpr Position kLength = 270;

// 270 positions in two splits, in runs that begin and end anywhere in a tile, or in one run.
std::vector<std::vector<HistoryRun>> Runs(bool in_pieces) {
  if (!in_pieces) return {{{0, 16, kLength}}};
  return {{{0, 40, 100}, {100, 3, 20}, {120, 205, 1}, {121, 230, 149}}};
}

struct RowsCase {
  int group;   // query heads of the KV head
  int tokens;  // queries
  bool in_pieces;
  Rules rules;
};

// 2 to 54 rows: each number of rows in the last group, and more rows than are computed together.
std::vector<RowsCase> Cases() {
  const Rules plain;
  const Rules window{.window = 37};
  return {{1, 2, false, plain}, {1, 9, false, window},  {1, 16, true, plain},
          {2, 5, true, window}, {3, 7, false, plain},   {4, 5, false, plain},
          {4, 5, true, window}, {5, 5, false, window},  {13, 1, false, plain},
          {7, 4, true, plain},  {4, 8, false, plain},   {31, 1, true, window},
          {6, 9, false, plain}, {3, 11, false, window}, {1, 14, false, plain}};
}

class AttentionRows : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionRows, OfAnyNumberMatchTheChain) {
  const DType type = GetParam();
  const auto backend = CpuWithThreads(2);
  for (RowsCase c : Cases()) {
    // One size fills vectors, the other one does not.
    const bool blocks = IsKvBlockType(type);
    const KvShape shape = blocks        ? KvShape{1, 64, 96}
                          : c.in_pieces ? KvShape{1, 21, 27}
                                        : KvShape{1, 32, 48};
    if (c.tokens % 2 == 1) {
      c.rules.soft_cap = 3.0f;
      c.rules.sinks.assign(static_cast<std::size_t>(c.group), 0.25f);
    }
    Scene scene({shape, c.group, type, type}, Runs(c.in_pieces));
    scene.Fill(*backend);
    const std::vector<QueryAt> batch = Range(0, kLength - c.tokens, kLength);
    const std::vector<float> expected = ChainOf(scene, batch, c.rules);
    for (const std::string& target : CpuTargetNames()) {
      if (target == "EMU128") continue;
      const testing::ForcedTarget forced(target);
      ASSERT_TRUE(forced.ok());
      EXPECT_TRUE(SameBits(Attend(*backend, scene, batch, c.rules), expected))
          << target << ", " << c.group << " heads, " << c.tokens << " queries, window "
          << c.rules.window << (c.in_pieces ? ", in pieces" : "");
    }
  }
}

// The portable target rounds products first.
TEST_P(AttentionRows, OfThePortableTargetMatchTheChain) {
  const testing::ForcedTarget forced("EMU128");
  if (!forced.ok()) GTEST_SKIP() << "there is no portable target";
  const auto backend = CpuWithThreads(1);
  Scene scene({{1, 32, 64}, 4, GetParam(), GetParam()}, Runs(true));
  scene.Fill(*backend);
  const std::vector<QueryAt> batch = Range(0, kLength - 5, kLength);
  EXPECT_TRUE(
      SameBits(Attend(*backend, scene, batch, {}), ChainOf(scene, batch, {}, {.fused = false})));
}

// Values that some of the rows do not see, in the same part as those that they see.
TEST_P(AttentionRows, UnseenValuesNeverMatter) {
  const DType type = GetParam();
  if (IsKvBlockType(type)) GTEST_SKIP() << "in block_test.cc";
  const auto backend = CpuWithThreads(1);
  const std::vector<QueryAt> batch = Range(0, kLength - 5, kLength);
  Scene scene({{1, 32, 32}, 4, type, type}, Runs(false));
  scene.Fill(*backend);
  const std::vector<float> expected = Attend(*backend, scene, batch, {});
  const std::int64_t bytes = BytesOf(type, 32);
  std::byte* const last = scene.layer().v + scene.CellOf(0, kLength - 1) * bytes;
  std::fill_n(last, bytes, std::byte{0xff});  // NaN
  std::vector<float> found = Attend(*backend, scene, batch, {});
  const std::size_t before = expected.size() / 5 * 4;
  EXPECT_TRUE(SameBits({found.begin(), found.begin() + static_cast<std::ptrdiff_t>(before)},
                       {expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(before)}));
  EXPECT_TRUE(std::isnan(found.back()));
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionRows,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0,
                                           DType::kQ4_0),
                         [](const auto& test) { return std::string(InfoOf(test.param).name); });

}  // namespace
}  // namespace kvcache::cpu::rows_test
