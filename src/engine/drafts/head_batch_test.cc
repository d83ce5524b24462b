// Drafts of several texts in the same passes of a head: each text gets what it gets alone, bit by bit, whatever
// the others do.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/transaction.h"
#include "kvcache/wrapper_cache.h"
#include "kvcache_engine/head_drafter.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"
#include "support/assistant_pair.h"
#include "support/counting_new.h"
#include "support/failing_backend.h"

namespace kvcache::head_batch_test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Row = std::vector<float>;

constexpr int kTexts = 6;
constexpr int kMax = 16;

struct Kind {
  const char* name;
  const char* architecture;  // gemma4: with its assistant
  int experts = 0;
  int window = 0;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

Tokens SomeTokens(int count, int seed) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (seed * 71 + i * 37 + i / 11 * 5) % 250);
  return tokens;
}

class HeadBatchTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "batch." + std::to_string(getpid());
    head_ = path_;
    if (std::string(GetParam().architecture) == "gemma4") {
      pair_ = std::make_unique<testing::AssistantPair>(path_);
      path_ = pair_->model();
      head_ = pair_->head();
    } else {
      make_model::Request request{.architecture = GetParam().architecture, .type = DType::kF32};
      request.shape.experts = GetParam().experts;
      if (GetParam().window > 0) {
        request.shape.window = GetParam().window;
        request.shape.window_pattern = 2;
      }
      request.shape.family.nextn_layers = 1;
      ASSERT_TRUE(make_model::MakeModel(request, path_).ok());
    }
    Open(0);
  }
  void TearDown() override {
    sessions_.clear();
    if (pair_ == nullptr) std::filesystem::remove(path_);
  }

  void Open(int pool_tokens) {
    drafters_.clear();
    sessions_.clear();
    auto cpu = MakeCpuBackend({.threads = 2});
    ASSERT_TRUE(cpu.ok());
    auto backend = std::make_unique<testing::FailingBackend>(std::move(cpu).value());
    backend_ = backend.get();
    auto engine = Engine::Open(path_,
                               {.context = 160,
                                .max_sequences = 20,
                                .pool_tokens = pool_tokens,
                                .prefill_chunk = 64,
                                .draft_head = head_},
                               std::move(backend));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }
  // Evaluates a text and makes its drafter, with one more token.
  void AddText(const Tokens& text, std::int32_t next) {
    const SequenceId sequence{static_cast<std::int32_t>(sessions_.size())};
    sessions_.push_back(std::make_unique<Session>(*engine_, sequence));
    ASSERT_TRUE(sessions_.back()->Append(text).ok());
    AddDrafter(sequence, text, next);
  }
  void AddDrafter(SequenceId sequence, Tokens text, std::int32_t next) {
    auto drafter = MakeHeadDrafter(*engine_);
    ASSERT_TRUE(drafter.ok());
    text.push_back(next);
    (*drafter)->SetSequence(sequence);
    ASSERT_TRUE((*drafter)->Begin(text).ok());
    drafters_.push_back(std::move(drafter).value());
  }
  // Texts of different lengths, and one that is copied.
  void AddTexts(int count = kTexts) {
    for (int i = 0; i < count; ++i) AddText(SomeTokens(9 + 23 * i % 100, i), 5 + 7 * i);
  }

  Tokens Alone(std::size_t text, int max) {
    Tokens drafts;
    const Status status = drafters_[text]->Propose(max, drafts);
    EXPECT_TRUE(status.ok()) << status.message();
    return drafts;
  }

  struct Asked {
    std::vector<Tokens> drafts;
    std::vector<Status> statuses;
  };
  // Asks for drafts of these texts together. Their vectors have something in them that must go. The nth allocation
  // fails;
  // 0: none does.
  Asked Together(const std::vector<std::size_t>& texts, const std::vector<int>& max, int nth = 0) {
    std::vector<Tokens> drafts(texts.size(), Tokens{77});
    std::vector<DraftAsk> asks;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      asks.push_back(
          {.drafter = drafters_[texts[i]].get(), .max = max[texts[i]], .drafts = &drafts[i]});
    }
    testing::FailAllocation(nth);
    drafters_.front()->batch()->Propose(asks);
    failed_ = nth > 0 && !testing::AllocationFailurePending();
    testing::FailAllocation(0);
    Asked asked;
    for (std::size_t i = 0; i < asks.size(); ++i) {
      asked.drafts.push_back(drafts[i]);
      asked.statuses.push_back(asks[i].status);
    }
    return asked;
  }
  static std::vector<std::size_t> All(std::size_t count) {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(i);
    return all;
  }

  std::string path_;
  std::string head_;
  std::unique_ptr<testing::AssistantPair> pair_;
  testing::FailingBackend* backend_ = nullptr;  // the engine's
  bool failed_ = false;                         // an allocation of the last Together
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Drafter>> drafters_;
};

// In all orders and depths. The texts' drafts differ, so that rows that are swapped would be found.
TEST_P(HeadBatchTest, DraftsAreThoseAlone) {
  AddTexts();
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    std::vector<std::size_t> texts = All(kTexts);
    std::shuffle(texts.begin(), texts.end(), random);
    texts.resize(1 + random() % kTexts);
    std::vector<int> max;
    for (int i = 0; i < kTexts; ++i) max.push_back(static_cast<int>(random() % (kMax + 1)));
    const Asked asked = Together(texts, max);
    std::set<Tokens> different;
    std::size_t some = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_TRUE(asked.statuses[i].ok()) << asked.statuses[i].message();
      ASSERT_EQ(asked.drafts[i], Alone(texts[i], max[texts[i]])) << "round " << round;
      some += asked.drafts[i].size() > 3 ? 1 : 0;
      if (asked.drafts[i].size() > 3) different.insert(asked.drafts[i]);
    }
    EXPECT_EQ(different.size(), some);
  }
}

// More texts than a pass has rows for.
TEST_P(HeadBatchTest, ManyTexts) {
  AddTexts(20);
  std::vector<int> max;
  for (int i = 0; i < 20; ++i) max.push_back(1 + i % 3);
  const Asked asked = Together(All(20), max);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(asked.drafts[i], Alone(i, max[i])) << i;
}

// The logits of a row, and the state that the head leaves, have the bits that they have alone.
TEST_P(HeadBatchTest, LogitsAreThoseAlone) {
  AddTexts();
  const auto hidden = static_cast<std::size_t>(engine_->info().hidden_size);
  const auto vocabulary = static_cast<std::size_t>(engine_->vocabulary_size());
  const bool reads = engine_->model().head_reads_cache();
  // Runs the head twice over these texts, and returns what each pass leaves for each.
  const auto run = [&](const std::vector<std::size_t>& texts) {
    std::vector<SequenceLength> lengths;
    std::vector<SequenceId> sequences;
    Row states;
    for (const std::size_t text : texts) {
      const Session& session = *sessions_[text];
      lengths.push_back({session.sequence(), session.position()});
      sequences.push_back(session.sequence());
      const std::span<const float> last = session.LastState();
      states.insert(states.end(), last.begin(), last.end());
    }
    std::optional<Transaction> round;
    Cache& cache = CacheOfLayer(engine_->cache(), engine_->info().layers);
    Cache* const caches[] = {&cache};
    if (!reads) round = Transaction::Begin(caches, lengths, {.max_tokens = 2}).value();
    if (reads) {
      EXPECT_TRUE(engine_->model().BeginDrafts(engine_->cache(), lengths).ok());
    }
    std::vector<std::vector<Row>> left(texts.size());
    for (int pass = 0; pass < 2; ++pass) {
      Tokens tokens;
      std::vector<Position> positions;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        tokens.push_back(11 + pass + static_cast<int>(texts[i]));
        positions.push_back(lengths[i].length + (reads ? 0 : pass));
      }
      if (!reads) {
        EXPECT_TRUE(cache
                        .StartForward({.positions = positions, .sequences = sequences, .items = {}},
                                      ForwardMode::kCompute)
                        .ok());
      }
      Row logits(vocabulary * texts.size());
      EXPECT_TRUE(engine_->model()
                      .Draft(tokens, positions, states.data(), engine_->cache(), logits.data(),
                             states.data())
                      .ok());
      for (std::size_t i = 0; i < texts.size(); ++i) {
        left[i].push_back(Row(logits.begin() + static_cast<std::ptrdiff_t>(i * vocabulary),
                              logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocabulary)));
        left[i].push_back(Row(states.begin() + static_cast<std::ptrdiff_t>(i * hidden),
                              states.begin() + static_cast<std::ptrdiff_t>((i + 1) * hidden)));
      }
    }
    return left;
  };
  const auto together = run({4, 1, 5, 0, 2, 3});
  const std::size_t order[] = {4, 1, 5, 0, 2, 3};
  for (std::size_t i = 0; i < kTexts; ++i) {
    ASSERT_EQ(together[i], run({order[i]})[0]) << "text " << order[i];
    EXPECT_NE(together[i], together[(i + 1) % kTexts]);
  }
}

// A call of the backend that fails once costs no text its drafts. One text whose drafts always fail does not
// disturb the others.
TEST_P(HeadBatchTest, AFailureDisturbsNoOther) {
  AddTexts();
  const std::vector<int> max = {3, 1, 5, 2, 4, 2};
  std::vector<Tokens> alone;
  for (std::size_t i = 0; i < kTexts; ++i) alone.push_back(Alone(i, max[i]));
  int failures = 0;
  for (int nth = 1;; ++nth) {
    backend_->FailNth(nth);
    const Asked asked = Together(All(kTexts), max);
    const bool failed = !backend_->failure_pending();
    backend_->FailNth(0);
    ASSERT_EQ(asked.drafts, alone) << "call " << nth;
    for (const Status& status : asked.statuses) EXPECT_TRUE(status.ok()) << status.message();
    if (!failed) break;
    ++failures;
  }
  EXPECT_GT(failures, 40);
  if (engine_->model().head_reads_cache()) return;  // such a head begins no transaction
  // The sequence has more tokens than this drafter knows.
  drafters_.erase(drafters_.begin() + 2);
  const std::span<const std::int32_t> text = sessions_[2]->tokens();
  AddDrafter(SequenceId{2}, Tokens(text.begin(), text.end() - 3), 9);
  const Asked asked = Together(All(kTexts), {3, 1, 2, 4, 2, 6});
  alone.erase(alone.begin() + 2);
  for (std::size_t i = 0; i + 1 < kTexts; ++i) {
    EXPECT_TRUE(asked.statuses[i].ok()) << asked.statuses[i].message();
    EXPECT_EQ(asked.drafts[i], alone[i]);
  }
  EXPECT_EQ(asked.statuses.back().code(), StatusCode::kInvalidArgument);
}

TEST_P(HeadBatchTest, AnAllocationThatFailsDisturbsNone) {
  AddTexts();
  const std::vector<int> max = {3, 1, 5, 2, 4, 2};
  std::vector<Tokens> alone;
  for (std::size_t i = 0; i < kTexts; ++i) alone.push_back(Alone(i, max[i]));
  int failures = 0;
  for (int nth = 1; nth == 1 || failed_; ++nth) {
    const Asked asked = Together(All(kTexts), max, nth);
    ASSERT_EQ(asked.drafts, alone) << "allocation " << nth;
    for (const Status& status : asked.statuses) EXPECT_TRUE(status.ok()) << status.message();
    failures += failed_ ? 1 : 0;
  }
  EXPECT_GT(failures, kTexts);
}

// A text without a known state has no drafts. With room for the drafts of one text only, each has its own.
TEST_P(HeadBatchTest, WhatIsMissingCostsNoOther) {
  Open(220);
  for (int i = 0; i < 4; ++i) AddText(SomeTokens(50, i), 9);
  engine_->states()->Forget(SequenceId{1});
  const std::vector<int> max = {16, 16, 16, 7};
  const Asked asked = Together(All(4), max);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(asked.statuses[i].ok()) << asked.statuses[i].message();
    EXPECT_EQ(asked.drafts[i], Alone(i, max[i]));
    EXPECT_EQ(asked.drafts[i].empty(), i == 1);
  }
  if (engine_->model().head_reads_cache()) return;
  AddText(SomeTokens(12, 7), 9);
  EXPECT_LT(engine_->cache().memory()->FreeCells(), 16);
  const Asked full = Together(All(5), {16, 16, 16, 7, 3});
  EXPECT_TRUE(full.drafts[0].empty());
  EXPECT_EQ(full.drafts[3], asked.drafts[3]);
  EXPECT_EQ(full.drafts[4], Alone(4, 3));
  for (const Status& status : full.statuses) EXPECT_TRUE(status.ok()) << status.message();
}

// Nothing of the drafts stays: what is evaluated afterwards has the bits that it has without.
TEST_P(HeadBatchTest, NothingStays) {
  AddTexts(3);
  const Tokens more = SomeTokens(20, 9);
  const std::int64_t free_cells = engine_->cache().memory()->FreeCells();
  (void)Together(All(3), {16, 2, 9});
  EXPECT_EQ(engine_->cache().memory()->FreeCells(), free_cells);
  std::vector<Row> logits;
  for (const auto& session : sessions_) {
    ASSERT_TRUE(session->Append(more).ok());
    const auto last = *session->LastLogits();
    logits.emplace_back(last.begin(), last.end());
  }
  Open(0);
  AddTexts(3);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(sessions_[i]->Append(more).ok());
    const auto last = *sessions_[i]->LastLogits();
    EXPECT_EQ(logits[i], Row(last.begin(), last.end()));
  }
}

TEST_P(HeadBatchTest, CostsAreKnownWhenPassesWereMeasured) {
  AddTexts();
  BatchDrafter& batch = *drafters_.front()->batch();
  EXPECT_EQ(batch.Seconds(1), 0.0);
  (void)Together(All(kTexts), {1, 2, 3, 4, 5, 6});
  for (const int texts : {1, 6, 16, 17, 40}) EXPECT_GT(batch.Seconds(texts), 0.0);
  EXPECT_DOUBLE_EQ(batch.Seconds(40), 2 * batch.Seconds(16) + batch.Seconds(8));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, HeadBatchTest,
    ::testing::Values(Kind{"llama", "llama"}, Kind{"experts", "llama", 4},
                      Kind{"windows", "llama", 0, 24}, Kind{"qwen2", "qwen2"},
                      Kind{"qwen3", "qwen3"}, Kind{"qwen3moe", "qwen3moe", 4},
                      Kind{"deepseek2", "deepseek2", 4}, Kind{"qwen35", "qwen35"},
                      Kind{"qwen35moe", "qwen35moe", 4}, Kind{"glm4moe", "glm4moe", 4},
                      Kind{"bailingmoe2", "bailingmoe2", 4}, Kind{"qwen3next", "qwen3next", 4},
                      Kind{"assistant", "gemma4"}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvcache::head_batch_test
