// Runs random operations on several sequences: append in common batches, fork, truncate, remove.
// After each pass every row must have the same bits as in a run with its text alone.
//
// A sequence goes back as far as its cache allows: with full attention to any position, with a
// window or a recurrent state to a position that can be resumed, if necessary to 0. The lost tokens
// are evaluated again.
//
// Each text is a common stem of kStem tokens and one of three tails. Three reference runs therefore
// give the expected logits of every position, for any forks.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "reference_run.h"

namespace kvcache::exactness::random_walk_test {
namespace {

constexpr int kSequences = 4, kTexts = 3, kLength = 560, kStem = 270, kChunk = 160;
constexpr int kOperations = 120;

struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // [vocabulary, kLength]
};

// The reference: one sequence, one thread, chunks of 64.
std::vector<Text> MakeTexts(const ModelCase& model) {
  std::vector<Text> texts(kTexts);
  const auto engine = OpenEngine(model, {});
  if (engine == nullptr) return {};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].tokens = RandomTokens(*engine, kLength, static_cast<std::uint32_t>(10 + i));
    std::copy_n(texts[0].tokens.begin(), kStem, texts[i].tokens.begin());
    texts[i].logits = EvaluateAlone(*engine, SequenceId{0}, texts[i].tokens);
    EXPECT_TRUE(engine->cache().Remove(SequenceId{0}, 0, kEndOfSequence).ok());
  }
  return texts;
}

class Walk {
 public:
  Walk(Engine& engine, const std::vector<Text>& texts, std::uint32_t seed)
      : engine_(engine), texts_(texts), random_(seed) {}

  void Step() {
    switch (Below(6)) {
      case 0: return Fork(Below(kSequences), Below(kSequences));
      case 1: return Truncate(Below(kSequences));
      default: return Append();
    }
  }

  // Counts truncations and forks that keep at least one token.
  int resumed() const { return resumed_; }

 private:
  struct State {
    int text = 0;
    Position length = 0;
  };

  int Below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  void Fork(int source, int target) {
    if (source == target) return;
    const Position length = Shorter(states_[source].length);
    ASSERT_TRUE(engine_.cache().CopyPrefix(SequenceId{source}, SequenceId{target}, length).ok());
    states_[target] = {states_[source].text, length};
    GoBack(target, length);
  }

  void Truncate(int sequence) {
    GoBack(sequence, Below(8) == 0 ? 0 : Shorter(states_[sequence].length));
  }

  // Half of the truncations remove a few tokens, as rejected drafts do.
  Position Shorter(Position length) {
    return Below(2) == 0 ? Below(length + 1) : std::max(0, length - Below(5));
  }

  void GoBack(int sequence, Position length) {
    Cache& cache = engine_.cache();
    const SequenceId id{sequence};
    const bool anywhere = cache.Recurrent() == nullptr && cache.CanResume(id, length);
    const Position kept = *cache.PrepareRestore(id, length);
    ASSERT_LE(kept, length);
    if (anywhere) {
      ASSERT_EQ(kept, length);
    }
    ASSERT_TRUE(cache.Remove(id, kept, kEndOfSequence).ok());
    states_[sequence].length = kept;
    resumed_ += kept > 0;
    MaybeChangeTail(states_[sequence]);
  }

  // A sequence that ends within the stem may continue with any tail.
  void MaybeChangeTail(State& state) {
    if (state.length <= kStem) state.text = Below(kTexts);
  }

  void Append() {
    std::vector<Entry> entries;
    const bool in_order = engine_.cache().Recurrent() != nullptr;
    const int max_tokens = Below(4) == 0 ? kChunk / kSequences : 5;
    for (int s = 0; s < kSequences; ++s) {
      Extend(s, std::min(kLength, states_[s].length + Below(max_tokens + 1)), entries);
    }
    if (entries.empty()) return;
    if (!in_order) std::shuffle(entries.begin(), entries.end(), random_);
    const std::vector<float> rows = Evaluate(engine_, entries);
    for (std::size_t i = 0; i < entries.size(); ++i) Check(entries[i], rows, i);
  }

  void Extend(int sequence, Position stop, std::vector<Entry>& entries) {
    State& state = states_[sequence];
    const auto& tokens = texts_[static_cast<std::size_t>(state.text)].tokens;
    for (; state.length < stop; ++state.length) {
      entries.push_back(
          {SequenceId{sequence}, state.length, tokens[static_cast<std::size_t>(state.length)]});
    }
  }

  void Check(const Entry& entry, std::span<const float> rows, std::size_t row) {
    const int sequence = Index(entry.sequence);
    const Text& text = texts_[static_cast<std::size_t>(states_[sequence].text)];
    ExpectSameRow(
        engine_, rows, row, text.logits, static_cast<std::size_t>(entry.position),
        "sequence " + std::to_string(sequence) + ", position " + std::to_string(entry.position));
  }

  Engine& engine_;
  const std::vector<Text>& texts_;
  std::mt19937 random_;
  State states_[kSequences];
  int resumed_ = 0;
};

class RandomWalk : public ::testing::TestWithParam<ModelCase> {};

TEST_P(RandomWalk, EveryRowIsExact) {
  const auto engine =
      OpenEngine(GetParam(), {.threads = 2, .chunk = kChunk, .sequences = kSequences});
  const std::vector<Text> texts = MakeTexts(GetParam());
  ASSERT_NE(engine, nullptr);
  ASSERT_EQ(texts.size(), kTexts);
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    Walk walk(*engine, texts, seed);
    for (int i = 0; i < kOperations; ++i) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", operation " + std::to_string(i));
      walk.Step();
      if (HasFailure()) return;
    }
    EXPECT_GT(walk.resumed(), 5);
    for (int s = 0; s < kSequences; ++s) {
      ASSERT_TRUE(engine->cache().Remove(SequenceId{s}, 0, kEndOfSequence).ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RandomWalk, ::testing::ValuesIn(AllCases()),
                         [](const auto& test) { return CaseName(test.param); });

}  // namespace
}  // namespace kvcache::exactness::random_walk_test
