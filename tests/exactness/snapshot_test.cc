// Checks snapshots and transactions in every model: whatever way a history comes back, the next
// tokens' logits have the bits of the sequence that was never interrupted.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transaction.h"
#include "reference_run.h"

namespace kvcache::exactness::snapshot_test {
namespace {

constexpr int kTokens = kReferenceTokens;
constexpr SequenceId kFirst{0}, kSecond{1}, kThird{2};
constexpr const char* kFileVariable = "KVCACHE_TEST_SNAPSHOT";

class SnapshotExactness : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    engine_ = OpenEngine(GetParam(), {.threads = 2, .chunk = 96, .sequences = 3});
    ASSERT_NE(engine_, nullptr);
    ASSERT_EQ(tokens_.size(), std::size_t{kTokens});
    others_ = RandomTokens(*engine_, kTokens, 2);
  }

  Cache& cache() { return engine_->cache(); }

  // Evaluates positions [begin, end) of the tokens as `sequence` and compares every row.
  void ExpectExact(Engine& engine, SequenceId sequence, Position begin, Position end) {
    for (Position at = begin; at < end;) {
      const Position stop = std::min(end, at + engine.max_batch());
      std::vector<Entry> entries;
      for (Position p = at; p < stop; ++p) {
        entries.push_back({sequence, p, tokens_[static_cast<std::size_t>(p)]});
      }
      const std::vector<float> rows = Evaluate(engine, entries);
      for (Position p = at; p < stop; ++p) {
        ExpectSameRow(engine, rows, static_cast<std::size_t>(p - at), expected_,
                      static_cast<std::size_t>(p), "position " + std::to_string(p));
      }
      at = stop;
    }
  }

  // Evaluates other tokens, so that cells are taken and windows slide.
  void Disturb(SequenceId sequence, Position begin, Position end) {
    for (Position at = begin; at < end; at += 90) {
      std::vector<Entry> entries;
      for (Position p = at; p < std::min(end, at + 90); ++p) {
        entries.push_back({sequence, p, others_[static_cast<std::size_t>(p)]});
      }
      Evaluate(*engine_, entries);
    }
  }

  void Clear(SequenceId sequence) { ASSERT_TRUE(cache().Remove(sequence, 0, kEndOfSequence).ok()); }

  // Restores the sequence and continues with the true tokens.
  void ExpectRestored(Engine& engine, SequenceId sequence, const Snapshot& snapshot) {
    SCOPED_TRACE("restored to " + std::to_string(snapshot.end()));
    const Status status = engine.cache().snapshots()->Restore(sequence, &snapshot, snapshot.end());
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectExact(engine, sequence, snapshot.end(), std::min(kTokens, snapshot.end() + 30));
  }

  std::unique_ptr<Snapshot> Take(SequenceId sequence, Position begin, Position end) {
    return TakeSnapshot(cache(), sequence, begin, end);
  }

  std::unique_ptr<Engine> engine_;
  const std::vector<std::int32_t>& tokens_ = ReferenceOf(GetParam(), 1).tokens;
  const std::vector<float>& expected_ = ReferenceOf(GetParam(), 1).expected;
  std::vector<std::int32_t> others_;
  std::mt19937 random_{9};
};

// Snapshots of several lengths, also after windows slid, lazy and materialised.
TEST_P(SnapshotExactness, Restored) {
  std::vector<std::unique_ptr<Snapshot>> kept;
  Position at = 0;
  for (const Position length : {17, 96, 250, 256, 420}) {
    ExpectExact(*engine_, kFirst, at, length);
    kept.push_back(Take(kFirst, 0, length));
    ASSERT_NE(kept.back(), nullptr);
    at = length;
  }
  Disturb(kThird, 0, 300);
  ExpectRestored(*engine_, kSecond, *kept[3]);
  Clear(kFirst);
  for (const auto& snapshot : kept) {
    Clear(kSecond);
    ExpectRestored(*engine_, kSecond, *snapshot);
    const Status status = cache().snapshots()->Materialize(*snapshot);
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectRestored(*engine_, kFirst, *snapshot);
  }
}

// Captures that fire inside passes, as parts of one history. Then the parts merged into one
// snapshot, and that one split again.
TEST_P(SnapshotExactness, CapturedMergedAndSplit) {
  const Position lengths[] = {40, 130, 131, 300, 390};
  ASSERT_TRUE(cache().snapshots()->ScheduleCaptures(kFirst, 0, lengths).ok());
  ExpectExact(*engine_, kFirst, 0, 430);
  auto parts = cache().snapshots()->TakeCaptures(kFirst);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  ASSERT_EQ(parts->size(), std::size(lengths));
  Clear(kFirst);
  for (std::size_t i = 0; i < parts->size(); ++i) {
    ASSERT_NE((*parts)[i], nullptr);
    ExpectRestored(*engine_, kSecond, *(*parts)[i]);
    if (i == 1) {
      ASSERT_TRUE(cache().snapshots()->Materialize(*(*parts)[i]).ok());
    }
  }
  std::unique_ptr<Snapshot> whole = std::move((*parts)[0]);
  for (std::size_t i = 1; i < parts->size(); ++i) {
    auto merged = cache().snapshots()->MergeSnapshots(whole, (*parts)[i]);
    ASSERT_TRUE(merged.ok()) << merged.status().message();
    whole = std::move(*merged);
  }
  Clear(kSecond);
  Disturb(kThird, 0, 200);
  ExpectRestored(*engine_, kSecond, *whole);
  auto halves = cache().snapshots()->SplitSnapshot(whole, 200);
  ASSERT_TRUE(halves.ok()) << halves.status().message();
  Clear(kSecond);
  if (halves->first != nullptr) {
    const Status status = cache().snapshots()->Restore(kSecond, halves->first.get(), 200);
    // The first part of a wrapper has nothing of a kind that cannot split.
    if (status.ok()) {
      ExpectExact(*engine_, kSecond, 200, 220);
    } else {
      EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.message();
    }
    ASSERT_TRUE(cache().snapshots()->Materialize(*halves->second).ok());
  }
  Clear(kSecond);
  ExpectExact(*engine_, kSecond, 0, 200);
  ExpectRestored(*engine_, kSecond, *halves->second);
}

TEST_P(SnapshotExactness, ImportedIntoACacheOfOtherSizes) {
  ExpectExact(*engine_, kFirst, 0, 333);
  const std::vector<std::byte> bytes = ExportSnapshot(cache(), *Take(kFirst, 0, 333));
  const auto other = OpenEngine(GetParam(), {.threads = 1, .chunk = 50, .sequences = 2});
  ASSERT_NE(other, nullptr);
  const std::vector<Entry> busy = {{kFirst, 0, 1}, {kFirst, 1, 2}};
  Evaluate(*other, busy);
  auto imported = other->cache().snapshots()->Import(bytes);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(ExportSnapshot(other->cache(), **imported), bytes);
  ExpectRestored(*other, kSecond, **imported);
}

// The test runs itself in another process, which imports what this one wrote to a file.
TEST_P(SnapshotExactness, ImportedInAnotherProcess) {
  if (const char* path = std::getenv(kFileVariable); path != nullptr) {
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    auto imported = cache().snapshots()->Import(std::as_bytes(std::span(text)));
    ASSERT_TRUE(imported.ok()) << imported.status().message();
    ExpectRestored(*engine_, kSecond, **imported);
    return;
  }
  ExpectExact(*engine_, kFirst, 0, 270);
  const std::vector<std::byte> bytes = ExportSnapshot(cache(), *Take(kFirst, 0, 270));
  const std::string name = CaseName(GetParam());
  const std::string path = ::testing::TempDir() + "kvcache_snapshot_" + name;
  {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }
  const std::string command = std::string(kFileVariable) + "='" + path + "' /proc/" +
                              std::to_string(getpid()) +
                              "/exe --gtest_filter='Models/SnapshotExactness."
                              "ImportedInAnotherProcess/" +
                              name + "' > '" + path + ".log' 2>&1";
  const int result = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe)
  std::ifstream log(path + ".log");
  const std::string output((std::istreambuf_iterator<char>(log)), {});
  EXPECT_EQ(result, 0) << output;
  EXPECT_NE(output.find("1 test from 1 test suite ran"), std::string::npos) << output;
  std::remove(path.c_str());
  std::remove((path + ".log").c_str());
}

// Rounds of true tokens followed by wrong ones, beside another sequence. Only the true ones are
// committed, or all are rolled back.
TEST_P(SnapshotExactness, Committed) {
  Position length = 150;
  ExpectExact(*engine_, kFirst, 0, length);
  Disturb(kSecond, 0, 40);
  Position other = 40;
  Cache* const caches[] = {&cache()};
  const bool in_order = cache().Recurrent() != nullptr;
  for (int round = 0; length < kTokens - 30 && round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto count = static_cast<Position>(1 + random_() % 12);
    const auto good = static_cast<Position>(random_() % (count + 1));
    const SequenceLength members[] = {{kFirst, length}};
    auto transaction = Transaction::Begin(caches, members, {.max_tokens = count});
    ASSERT_TRUE(transaction.ok()) << transaction.status().message();
    std::vector<Entry> entries;
    for (Position i = 0; i < count; ++i) {
      const auto& source = i < good ? tokens_ : others_;
      entries.push_back({kFirst, length + i, source[static_cast<std::size_t>(length + i)]});
    }
    const bool company = round % 3 == 0 && other + 2 < kTokens;
    for (int i = 0; company && i < 2; ++i) {
      entries.push_back({kSecond, other, others_[static_cast<std::size_t>(other)]});
      ++other;
    }
    if (!in_order) std::shuffle(entries.begin(), entries.end(), random_);
    const std::vector<float> rows = Evaluate(*engine_, entries);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].sequence != kFirst || entries[i].position >= length + good) continue;
      ExpectSameRow(*engine_, rows, i, expected_, static_cast<std::size_t>(entries[i].position),
                    "position " + std::to_string(entries[i].position));
    }
    if (round % 4 == 3) {
      transaction->RollBack();
      continue;
    }
    const Status status = transaction->Commit({good});
    ASSERT_TRUE(status.ok()) << status.message();
    length += good;
    if (HasFailure()) return;
  }
  ExpectExact(*engine_, kFirst, length, length + 20);
}

// Two models that differ in their weights alone have snapshots of the same sizes.
TEST(SnapshotOfAnotherModel, IsRefusedWithBothIdentities) {
  const std::string flags = "--layers 2 --width 64 --heads 2 --kv-heads 1 --ffn 96 --vocab 300";
  const auto first = OpenFlags("FirstSeed", flags + " --seed 1");
  const auto second = OpenFlags("SecondSeed", flags + " --seed 2");
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  const auto line_of = [](Engine& engine) {
    const std::string text = *engine.cache().snapshots()->Fingerprint();
    return text.substr(0, text.find('\n'));
  };
  const std::string first_line = line_of(*first);
  const std::string second_line = line_of(*second);
  EXPECT_NE(first_line, second_line);
  for (Engine* const engine : {first.get(), second.get()}) {
    const std::vector<Entry> entries = {{kFirst, 0, 5}, {kFirst, 1, 6}};
    Evaluate(*engine, entries);
  }
  const auto snapshot = TakeSnapshot(first->cache(), kFirst, 0, 2);
  ASSERT_NE(snapshot, nullptr);
  const std::vector<std::byte> bytes = ExportSnapshot(first->cache(), *snapshot);
  const auto refused = second->cache().snapshots()->Import(bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  for (const std::string& line : {first_line, second_line}) {
    EXPECT_NE(refused.status().message().find("'" + line + "'"), std::string::npos)
        << refused.status().message();
  }
  EXPECT_TRUE(OpenFlags("FirstSeed", flags + " --seed 1")->cache().snapshots()->Import(bytes).ok());
}

INSTANTIATE_TEST_SUITE_P(Models, SnapshotExactness, ::testing::ValuesIn(AllCases()),
                         [](const auto& test) { return CaseName(test.param); });

}  // namespace
}  // namespace kvcache::exactness::snapshot_test
