// Checks encoder-decoder models: the decoder's logits have the same bits in chunks of any size, on
// any number of threads, together with sequences that read other texts, after forks, and after
// truncation.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "reference_run.h"

namespace kvcache::exactness::encoder_test {
namespace {

constexpr int kText = 300, kTokens = 400;
constexpr SequenceId kFirst{0}, kSecond{1}, kThird{2};

struct EncoderCase {
  const char* name;
  const char* flags;
  DType kv = DType::kF32;
};
constexpr EncoderCase kCases[] = {
    {"Gated",
     "--arch t5 --layers 2 --decoder-layers 3 --width 96 --heads 3 --head-dim 48 --ffn 128"
     " --vocab 333 --tied"},
    {"ReluQ8",
     "--arch t5 --layers 3 --decoder-layers 2 --width 64 --heads 4 --head-dim 32 --ffn 96"
     " --vocab 384 --untied --ungated --type q8_0"},
    {"GatedCacheQ8",
     "--arch t5 --layers 2 --decoder-layers 2 --width 96 --heads 3 --head-dim 32 --ffn 128"
     " --vocab 333 --tied",
     DType::kQ8_0},
    {"ReluCacheQ4",
     "--arch t5 --layers 2 --decoder-layers 2 --width 64 --heads 2 --head-dim 64 --ffn 96"
     " --vocab 384 --untied --ungated --type q8_0",
     DType::kQ4_0},
};

class EncoderExactness : public ::testing::TestWithParam<EncoderCase> {
 protected:
  std::unique_ptr<Engine> Open(const RunOptions& options) {
    return OpenFlags(std::string("Encoder") + GetParam().name, GetParam().flags, options,
                     GetParam().kv);
  }

  // The reference: one sequence, one thread, chunks of 64.
  void SetUp() override {
    const auto engine = Open({});
    ASSERT_NE(engine, nullptr);
    text_ = RandomTokens(*engine, kText, 1);
    other_text_ = RandomTokens(*engine, kText / 2, 2);
    tokens_ = RandomTokens(*engine, kTokens, 3);
    tokens_.front() = engine->info().decoder_start;
    expected_ = Read(*engine, kFirst, text_);
    ExpectAll(*engine, kFirst, 1, kTokens, &expected_);
  }

  // Encodes the text and returns the logits of the decoder's first token.
  std::vector<float> Read(Engine& engine, SequenceId sequence, std::span<const std::int32_t> text) {
    const Status status = engine.Encode(text, sequence);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> logits(static_cast<std::size_t>(engine.info().vocabulary));
    const std::int32_t row[] = {0};
    EXPECT_TRUE(engine.Logits(row, logits.data()).ok());
    return logits;
  }

  void ReadExactly(Engine& engine, SequenceId sequence) {
    ExpectSameRow(engine, Read(engine, sequence, text_), 0, expected_, 0, "the first token");
  }

  // Evaluates [begin, end). Compares each row with the reference, or appends it to `to`.
  void ExpectAll(Engine& engine, SequenceId sequence, Position begin, Position end,
                 std::vector<float>* to = nullptr) {
    for (Position at = begin; at < end;) {
      std::vector<Entry> entries;
      const Position first = at;
      for (; at < std::min(end, first + engine.max_batch()); ++at) {
        entries.push_back({sequence, at, tokens_[static_cast<std::size_t>(at)]});
      }
      const std::vector<float> rows = Evaluate(engine, entries);
      if (to != nullptr) {
        to->insert(to->end(), rows.begin(), rows.end());
        continue;
      }
      for (Position p = first; p < at; ++p) {
        ExpectSameRow(engine, rows, static_cast<std::size_t>(p - first), expected_,
                      static_cast<std::size_t>(p), "position " + std::to_string(p));
      }
    }
  }

  std::vector<std::int32_t> text_, other_text_, tokens_;
  std::vector<float> expected_;  // [vocabulary, kTokens]
};

TEST_P(EncoderExactness, ChunksAndThreads) {
  for (const int chunk : {1, 7, 512}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE("chunk " + std::to_string(chunk) + ", threads " + std::to_string(threads));
      const auto engine = Open({.threads = threads, .chunk = chunk});
      ASSERT_NE(engine, nullptr);
      ReadExactly(*engine, kFirst);
      ExpectAll(*engine, kFirst, 1, kTokens);
    }
  }
}

TEST_P(EncoderExactness, LogitsDependOnTheText) {
  const auto engine = Open({});
  ASSERT_NE(engine, nullptr);
  const std::vector<float> other = Read(*engine, kFirst, other_text_);
  EXPECT_NE(std::vector<float>(expected_.begin(),
                               expected_.begin() + static_cast<std::ptrdiff_t>(other.size())),
            other);
}

// Other sequences read another text and decode in the same passes.
TEST_P(EncoderExactness, InCompany) {
  const auto engine = Open({.threads = 2, .chunk = 96, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  Read(*engine, kSecond, other_text_);
  ReadExactly(*engine, kFirst);
  std::mt19937 random(3);
  Position reached[3] = {1, 1, 0};  // the third sequence has read no text
  while (reached[0] < kTokens) {
    std::vector<Entry> entries;
    for (const SequenceId sequence : {kFirst, kSecond, kThird}) {
      Position& at = reached[Index(sequence)];
      const Position stop = std::min(kTokens, at + static_cast<Position>(random() % 33));
      for (; at < stop; ++at) {
        entries.push_back({sequence, at, tokens_[static_cast<std::size_t>(at)]});
      }
    }
    if (entries.empty()) continue;
    std::shuffle(entries.begin(), entries.end(), random);
    const std::vector<float> rows = Evaluate(*engine, entries);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].sequence != kFirst) continue;
      ExpectSameRow(*engine, rows, i, expected_, static_cast<std::size_t>(entries[i].position),
                    "position " + std::to_string(entries[i].position));
    }
  }
}

TEST_P(EncoderExactness, AfterForksAndGoingBack) {
  const auto engine = Open({.threads = 2, .chunk = 128, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  ReadExactly(*engine, kFirst);
  ExpectAll(*engine, kFirst, 1, 290);
  for (const Position shared : {1, 17, 256, 289}) {
    SCOPED_TRACE("shared " + std::to_string(shared));
    ASSERT_TRUE(engine->cache().CopyPrefix(kFirst, kSecond, shared).ok());
    ExpectAll(*engine, kSecond, shared, shared + 60);
    ASSERT_EQ(GoBack(*engine, kSecond, shared + 5), shared + 5);
    ExpectAll(*engine, kSecond, shared + 5, shared + 60);
  }
  // The fork keeps the encoder's output after the source is removed.
  ASSERT_TRUE(engine->cache().Remove(kFirst, 0, kEndOfSequence).ok());
  ASSERT_TRUE(engine->cache().CopyPrefix(kSecond, kThird, 300).ok());
  Read(*engine, kFirst, other_text_);
  ExpectAll(*engine, kThird, 300, kTokens);
}

// The encoder's output and the decoder's tokens come back from a snapshot, lazy, materialised and as
// bytes, and after rounds of wrong tokens.
TEST_P(EncoderExactness, AfterSnapshotsAndTransactions) {
  const auto engine = Open({.threads = 2, .chunk = 128, .sequences = 3});
  ASSERT_NE(engine, nullptr);
  Cache& cache = engine->cache();
  ReadExactly(*engine, kFirst);
  ExpectAll(*engine, kFirst, 1, 200);
  const auto snapshot = TakeSnapshot(cache, kFirst, 0, 200);
  ASSERT_NE(snapshot, nullptr);
  ASSERT_TRUE(cache.Remove(kFirst, 0, kEndOfSequence).ok());
  Read(*engine, kFirst, other_text_);
  const auto other = Open({.threads = 1, .chunk = 50, .sequences = 2});
  ASSERT_NE(other, nullptr);
  RestoreInEveryWay(*engine, *other, kSecond, *snapshot,
                    [&](Engine& to) { ExpectAll(to, kSecond, 200, 230); });
  for (Position length = 230; length < 260; length += 2) {
    auto round = BeginTransaction(cache, {kSecond, length}, 5);
    ASSERT_TRUE(round.has_value());
    ExpectAll(*engine, kSecond, length, length + 2);
    const std::vector<Entry> wrong = {{kSecond, length + 2, 5}, {kSecond, length + 3, 6}};
    Evaluate(*engine, wrong);
    ASSERT_TRUE(round->Commit({2}).ok());
  }
  ExpectAll(*engine, kSecond, 260, 280);
}

TEST_P(EncoderExactness, TheMiddleCannotBeRemoved) {
  const auto engine = Open({});
  ASSERT_NE(engine, nullptr);
  ReadExactly(*engine, kFirst);
  ExpectAll(*engine, kFirst, 1, 50);
  EXPECT_EQ(engine->cache().Remove(kFirst, 10, 20).code(), StatusCode::kUnsupported);
  ExpectAll(*engine, kFirst, 50, 70);
}

INSTANTIATE_TEST_SUITE_P(Models, EncoderExactness, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvcache::exactness::encoder_test
