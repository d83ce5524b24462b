// Checks trees of drafts, evaluated in one pass. Every draft has the same bits as in a run with its
// path alone. An accepted path leaves the sequence as if its tokens had been evaluated one after
// another.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "reference_run.h"

namespace kvcache::exactness::draft_test {
namespace {

constexpr int kTokens = kReferenceTokens;
constexpr SequenceId kFirst{0}, kSecond{1}, kThird{2};

struct Tree {
  std::vector<Entry> entries;
  std::vector<std::int32_t> parents;

  // Adds draft `token` after `parent`, or after the sequence's `length` tokens.
  std::int32_t Add(SequenceId sequence, Position length, std::int32_t parent, std::int32_t token) {
    const Position position =
        parent < 0 ? length : entries[static_cast<std::size_t>(parent)].position + 1;
    entries.push_back({sequence, position, token});
    parents.push_back(parent);
    return static_cast<std::int32_t>(entries.size()) - 1;
  }

  std::vector<std::int32_t> PathTo(std::int32_t token) const {
    std::vector<std::int32_t> path;
    for (; token >= 0; token = parents[static_cast<std::size_t>(token)]) {
      path.insert(path.begin(), token);
    }
    return path;
  }
};

class DraftExactness : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    engine_ = OpenEngine(GetParam(), {.threads = 2, .chunk = 96, .sequences = 3});
    ASSERT_NE(engine_, nullptr);
    ASSERT_EQ(tokens_.size(), std::size_t{kTokens});
    ASSERT_EQ(others_.size(), std::size_t{kTokens});
  }

  // Evaluates positions [begin, end): of tokens_ if the sequence is kFirst, else of others_.
  void Read(SequenceId sequence, Position begin, Position end) {
    const bool first = sequence == kFirst;
    for (Position at = begin; at < end;) {
      const Position stop = std::min(end, at + engine_->max_batch());
      std::vector<Entry> entries;
      for (Position p = at; p < stop; ++p) {
        entries.push_back({sequence, p, (first ? tokens_ : others_)[static_cast<std::size_t>(p)]});
      }
      const std::vector<float> rows = Evaluate(*engine_, entries);
      for (Position p = at; p < stop; ++p) {
        ExpectSameRow(*engine_, rows, static_cast<std::size_t>(p - at),
                      first ? expected_ : expected_others_, static_cast<std::size_t>(p),
                      "position " + std::to_string(p));
      }
      at = stop;
    }
  }

  // Adds the true next `depth` tokens to the tree, and other drafts that will be rejected. Returns
  // the true path.
  std::vector<std::int32_t> Plant(Tree& tree, SequenceId sequence, Position length, int depth) {
    const std::vector<std::int32_t>& truth = sequence == kFirst ? tokens_ : others_;
    std::vector<std::int32_t> path;
    const auto vocabulary = static_cast<unsigned>(engine_->info().vocabulary);
    std::vector<std::int32_t> own;
    for (int i = 0; i < depth; ++i) {
      for (auto wrong = random_() % 3; wrong > 0; --wrong) {
        const auto any = static_cast<std::size_t>(random_() % (own.size() + 1));
        own.push_back(tree.Add(sequence, length, any == own.size() ? -1 : own[any],
                               static_cast<std::int32_t>(random_() % vocabulary)));
      }
      path.push_back(tree.Add(sequence, length, path.empty() ? -1 : path.back(),
                              truth[static_cast<std::size_t>(length + i)]));
      own.push_back(path.back());
    }
    return path;
  }

  // Compares with the same tokens evaluated one after another in a third sequence.
  void ExpectAlone(const Tree& tree, std::int32_t token, Position length,
                   std::span<const float> rows) {
    const SequenceId sequence = tree.entries[static_cast<std::size_t>(token)].sequence;
    ASSERT_TRUE(engine_->cache().CopyPrefix(sequence, kThird, length).ok());
    std::vector<Entry> path;
    for (const std::int32_t i : tree.PathTo(token)) {
      path.push_back(tree.entries[static_cast<std::size_t>(i)]);
      path.back().sequence = kThird;
    }
    const std::vector<float> alone = Evaluate(*engine_, path);
    ExpectSameRow(*engine_, rows, static_cast<std::size_t>(token), alone, path.size() - 1,
                  "draft " + std::to_string(token));
  }

  std::unique_ptr<Engine> engine_;
  const std::vector<std::int32_t>& tokens_ = ReferenceOf(GetParam(), 1).tokens;
  const std::vector<std::int32_t>& others_ = ReferenceOf(GetParam(), 2).tokens;
  const std::vector<float>& expected_ = ReferenceOf(GetParam(), 1).expected;
  const std::vector<float>& expected_others_ = ReferenceOf(GetParam(), 2).expected;
  std::mt19937 random_{5};
};

TEST_P(DraftExactness, EveryDraftIsExact) {
  for (const Position length : {0, 17, 250, 300}) {
    SCOPED_TRACE("behind " + std::to_string(length) + " tokens");
    ASSERT_TRUE(engine_->cache().Remove(kFirst, 0, kEndOfSequence).ok());
    Read(kFirst, 0, length);
    Tree tree;
    const auto path = Plant(tree, kFirst, length, 9);
    const std::vector<float> rows = Evaluate(*engine_, tree.entries, tree.parents);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(tree.entries.size()); ++i) {
      ExpectAlone(tree, i, length, rows);
      if (HasFailure()) return;
    }
  }
}

// Two sequences draft in the same passes, for many rounds; a random part of the true path is
// accepted.
TEST_P(DraftExactness, AcceptedPathsAreExact) {
  Position first = 200, second = 120;
  Read(kFirst, 0, first);
  Read(kSecond, 0, second);
  for (int round = 0; first < kTokens - 20 && round < 40; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Tree tree;
    const auto path = Plant(tree, kFirst, first, 1 + static_cast<int>(random_() % 12));
    const auto other = Plant(tree, kSecond, second, 1 + static_cast<int>(random_() % 5));
    const std::vector<float> rows = Evaluate(*engine_, tree.entries, tree.parents);
    for (std::size_t i = 0; i < path.size(); ++i) {
      ExpectSameRow(*engine_, rows, static_cast<std::size_t>(path[i]), expected_,
                    static_cast<std::size_t>(first) + i, "draft " + std::to_string(i));
    }
    for (std::size_t i = 0; i < other.size(); ++i) {
      ExpectSameRow(*engine_, rows, static_cast<std::size_t>(other[i]), expected_others_,
                    static_cast<std::size_t>(second) + i, "other's draft " + std::to_string(i));
    }
    std::vector<std::int32_t> last;
    const auto keep = [&](const std::vector<std::int32_t>& from, Position& length) {
      const auto kept = static_cast<Position>(random_() % (from.size() + 1));
      if (kept > 0) last.push_back(from[static_cast<std::size_t>(kept) - 1]);
      length += kept;
    };
    keep(path, first);
    keep(other, second);
    const Status status = engine_->cache().AcceptDrafts(last);
    ASSERT_TRUE(status.ok()) << status.message();
    if (round % 4 == 0) {  // evaluates one token without drafts
      Read(kFirst, first, first + 1);
      ++first;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(first, 300);
  Read(kFirst, first, first + 15);
  Read(kSecond, second, second + 15);
}

INSTANTIATE_TEST_SUITE_P(Models, DraftExactness, ::testing::ValuesIn(AllCases()),
                         [](const auto& test) { return CaseName(test.param); });

}  // namespace
}  // namespace kvcache::exactness::draft_test
