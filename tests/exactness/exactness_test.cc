// Checks that a token's logits have the same bits however its history was evaluated: in chunks of
// any size, on any number of threads, in batches with other sequences, from a shared prefix, and
// after truncation.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "reference_run.h"

namespace kvcache::exactness::exactness_test {
namespace {

constexpr int kTokens = kReferenceTokens;
constexpr SequenceId kFirst{0}, kSecond{1}, kThird{2};

class Exactness : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override { ASSERT_EQ(tokens_.size(), std::size_t{kTokens}); }

  // Evaluates positions [begin, end) of the tokens as `sequence` and compares every row.
  void ExpectExact(Engine& engine, SequenceId sequence, Position begin, Position end) {
    for (Position at = begin; at < end;) {
      const Position stop = std::min(end, at + engine.max_batch());
      std::vector<Entry> entries;
      for (Position p = at; p < stop; ++p) entries.push_back({sequence, p, TokenAt(p)});
      const std::vector<float> rows = Evaluate(engine, entries);
      for (Position p = at; p < stop; ++p) ExpectRow(engine, rows, p - at, p);
      at = stop;
    }
  }

  void ExpectRow(const Engine& engine, std::span<const float> rows, Position row, Position p) {
    ExpectSameRow(engine, rows, static_cast<std::size_t>(row), expected_,
                  static_cast<std::size_t>(p), "position " + std::to_string(p));
  }

  std::int32_t TokenAt(Position p) const { return tokens_[static_cast<std::size_t>(p)]; }

  const std::vector<std::int32_t>& tokens_ = ReferenceOf(GetParam(), 1).tokens;
  const std::vector<float>& expected_ = ReferenceOf(GetParam(), 1).expected;
};

TEST_P(Exactness, ChunksAndThreads) {
  for (const int chunk : {1, 7, 64, 512}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE("chunk " + std::to_string(chunk) + ", threads " + std::to_string(threads));
      const auto engine = OpenEngine(GetParam(), {.threads = threads, .chunk = chunk});
      ASSERT_NE(engine, nullptr);
      ExpectExact(*engine, kFirst, 0, kTokens);
    }
  }
}

// Three sequences advance by different numbers of tokens, shuffled within each batch. Recurrent
// layers need the tokens of a sequence side by side.
TEST_P(Exactness, InCompany) {
  const auto engine = OpenEngine(GetParam(), {.threads = 2, .chunk = 96, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  const auto others = RandomTokens(*engine, kTokens, 2);
  std::mt19937 random(3);
  const bool in_order = engine->cache().Recurrent() != nullptr;
  Position reached[3] = {0, 0, 0};
  while (reached[0] < kTokens) {
    std::vector<Entry> entries;
    for (const SequenceId sequence : {kFirst, kSecond, kThird}) {
      Position& at = reached[Index(sequence)];
      const Position stop = std::min(kTokens, at + static_cast<Position>(random() % 33));
      for (; at < stop; ++at) {
        const auto other = others[static_cast<std::size_t>(at)];
        entries.push_back({sequence, at, sequence == kFirst ? TokenAt(at) : other});
      }
    }
    if (entries.empty()) continue;
    if (!in_order) std::shuffle(entries.begin(), entries.end(), random);
    const std::vector<float> rows = Evaluate(*engine, entries);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].sequence != kFirst) continue;
      ExpectRow(*engine, rows, static_cast<Position>(i), entries[i].position);
    }
  }
}

TEST_P(Exactness, AfterASharedPrefix) {
  for (const Position shared : {1, 15, 255, 256, 257, 511, 513}) {
    SCOPED_TRACE("shared " + std::to_string(shared));
    const auto engine = OpenEngine(GetParam(), {.threads = 2, .chunk = 128, .sequences = 3});
    ASSERT_NE(engine, nullptr);
    ExpectExact(*engine, kFirst, 0, shared + 20);
    ASSERT_TRUE(engine->cache().CopyPrefix(kFirst, kSecond, shared).ok());
    // The source advances and is then removed. Neither may change the copy.
    const Position kept = GoBack(*engine, kSecond, shared);
    const bool has_checkpoint = engine->cache().Recurrent() != nullptr && shared >= 255;
    EXPECT_TRUE(kept > 0 || !has_checkpoint);
    ExpectExact(*engine, kSecond, kept, shared + 10);
    ExpectExact(*engine, kFirst, shared + 20, shared + 30);
    ASSERT_TRUE(engine->cache().CopyPrefix(kSecond, kThird, shared + 10).ok());
    ASSERT_TRUE(engine->cache().Remove(kFirst, 0, kEndOfSequence).ok());
    ExpectExact(*engine, kSecond, shared + 10, shared + 40);
    ExpectExact(*engine, kThird, GoBack(*engine, kThird, shared + 10), kTokens);
  }
}

// Other tokens occupied these positions before the truncation.
TEST_P(Exactness, AfterTruncation) {
  const auto engine = OpenEngine(GetParam(), {.threads = 2, .chunk = 100});
  ASSERT_NE(engine, nullptr);
  const auto others = RandomTokens(*engine, kTokens, 4);
  ExpectExact(*engine, kFirst, 0, 300);
  for (const Position kept : {290, 256, 255, 17, 1, 0}) {
    SCOPED_TRACE("kept " + std::to_string(kept));
    const Position from = GoBack(*engine, kFirst, kept);
    std::vector<Entry> wrong;
    for (Position p = from; p < from + 60; ++p) {
      wrong.push_back({kFirst, p, others[static_cast<std::size_t>(p)]});
    }
    Evaluate(*engine, wrong);
    ExpectExact(*engine, kFirst, GoBack(*engine, kFirst, from), kept + 300);
  }
}

// The sequence's cells become many short runs, out of order: other sequences take and release the
// cells after it, between its passes.
TEST_P(Exactness, InScatteredCells) {
  const auto engine = OpenEngine(GetParam(), {.threads = 2, .chunk = 64, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  ExpectExact(*engine, kFirst, 0, 40);
  for (Position at = 40; at < kTokens; at += 20) {
    // A copy that advances takes the cells after the prefix, so that the original needs other
    // cells.
    ASSERT_TRUE(engine->cache().CopyPrefix(kFirst, kSecond, at).ok());
    ExpectExact(*engine, kSecond, GoBack(*engine, kSecond, at), std::min(kTokens, at + 7));
    ASSERT_TRUE(engine->cache().CopyPrefix(kFirst, kThird, at).ok());
    ExpectExact(*engine, kThird, GoBack(*engine, kThird, at), std::min(kTokens, at + 3));
    ExpectExact(*engine, kFirst, at, std::min(kTokens, at + 20));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness, ::testing::ValuesIn(AllCases()),
                         [](const auto& test) { return CaseName(test.param); });

}  // namespace
}  // namespace kvcache::exactness::exactness_test
