// Requests with different adapters in one scheduler: each has the bits that it has alone, and what was computed with an
// adapter comes back for that adapter and scale only, from live requests, from prefixes and from a store.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/store.h"
#include "store/store_testing.h"
#include "support/random_adapter.h"
#include "support/scheduler_fixture.h"

namespace kvcache::adapter_prefix_test {
namespace {

using testing::MakeAdapter;

class AdapterPrefixTest : public SchedulerFixture {
 protected:
  using Uses = std::vector<AdapterUse>;

  void SetUp() override {
    SchedulerFixture::SetUp();
    base_ = GgufFile::Open(path_).value();
    adapters_ = {MakeAdapter(*base_, {.largest = 0.1f}),
                 MakeAdapter(*base_, {.rank = 9, .seed = 2, .largest = 0.1f})};
    alone_ = Open({.threads = 2, .context = kContext, .prefill_chunk = 64, .adapters = adapters_});
  }
  void TearDown() override {
    scheduler_.reset();
    engine_.reset();
    SchedulerFixture::TearDown();
  }
  EngineOptions Options(int sequences = 4) const {
    return {.threads = 2,
            .context = kContext,
            .max_sequences = sequences,
            .prefill_chunk = 64,
            .adapters = adapters_};
  }
  Asked& AskWith(const Tokens& prompt, const Uses& uses, int max_tokens = 6) {
    ScheduledRequest request;
    request.adapters = uses;
    return Ask(prompt, max_tokens, std::move(request));
  }
  // Compares all logits of a request with those of its text alone, with its adapters.
  void ExpectBits(const Asked& asked, const Uses& uses) {
    ASSERT_EQ(asked.result.status.message(), "");
    Tokens text = asked.prompt;
    text.insert(text.end(), asked.result.tokens.begin(), asked.result.tokens.end());
    Session session(*alone_, SequenceId{0});
    ASSERT_TRUE(session.UseAdapters(uses).ok());
    for (const auto& [length, row] : asked.logits) {
      const auto held = session.tokens().size();
      ASSERT_TRUE(
          session.Append(std::span(text).subspan(held, static_cast<std::size_t>(length) - held))
              .ok());
      const auto expected = *session.LastLogits();
      ASSERT_EQ(row, Row(expected.begin(), expected.end()))
          << "after " << length << " tokens, restored " << asked.result.reuse.restored;
    }
    ASSERT_FALSE(asked.logits.empty());
  }

  std::unique_ptr<GgufFile> base_;
  std::vector<EngineAdapter> adapters_;
};

const std::vector<std::vector<AdapterUse>>& Choices() {
  static const auto* const choices = new std::vector<std::vector<AdapterUse>>{
      {}, {{0, 1.0f}}, {{0, 0.5f}}, {{1, 1.0f}}, {{1, 1.0f}, {0, 1.0f}}};
  return *choices;
}

TEST_P(AdapterPrefixTest, OnePromptWithEachChoiceSharesNothing) {
  StartWith(Options(), {});
  const Tokens prompt = SomeTokens(90);
  for (int round = 0; round < 2; ++round) {
    std::vector<Asked*> asked;
    for (const auto& uses : Choices()) asked.push_back(&AskWith(prompt, uses));
    RunAll();
    for (std::size_t i = 0; i < asked.size(); ++i) {
      ExpectBits(*asked[i], Choices()[i]);
      const Position restored = asked[i]->result.reuse.restored;
      EXPECT_TRUE(round == 0 ? restored == 0 : restored >= 64) << i << ": " << restored;
    }
    for (std::size_t i = 1; i < asked.size(); ++i) {
      EXPECT_NE(asked[i]->logits, asked[0]->logits) << i;
    }
  }
}

TEST_P(AdapterPrefixTest, AScaleOfZeroIsNoAdapter) {
  StartWith(Options(), {});
  const Tokens prompt = SomeTokens(90);
  AskWith(prompt, {});
  RunAll();
  const Asked& zero = AskWith(prompt, {{1, 0.0f}});
  RunAll();
  EXPECT_GE(zero.result.reuse.restored, 64);
  ExpectBits(zero, {});
}

TEST_P(AdapterPrefixTest, ALiveTextIsSharedWithItsOwnAdapterOnly) {
  StartWith(Options(), {});
  const Tokens prompt = SomeTokens(128);
  const Asked& first = AskWith(prompt, {{0, 1.0f}}, 40);
  do {
    ASSERT_TRUE(*scheduler_->Step());
  } while (scheduler_->Requests().front().in_prompt);
  const Asked& other = AskWith(prompt, {{1, 1.0f}}, 3);
  const Asked& same = AskWith(prompt, {{0, 1.0f}}, 3);
  RunAll();
  EXPECT_EQ(other.result.reuse.restored, 0);
  EXPECT_GE(same.result.reuse.restored, 96);
  ExpectBits(first, {{0, 1.0f}});
  ExpectBits(other, {{1, 1.0f}});
  ExpectBits(same, {{0, 1.0f}});
}

TEST_P(AdapterPrefixTest, DraftsChangeNoBits) {
  StartWith(Options(), {.look_up_drafts = true});
  const Tokens half = SomeTokens(40);
  Tokens prompt = half;
  prompt.insert(prompt.end(), half.begin(), half.end());
  for (int round = 0; round < 2; ++round) {
    std::vector<Asked*> asked;
    for (const auto& uses : Choices()) asked.push_back(&AskWith(prompt, uses, 24));
    RunAll();
    for (std::size_t i = 0; i < asked.size(); ++i) ExpectBits(*asked[i], Choices()[i]);
  }
}

TEST_P(AdapterPrefixTest, ParkedRequestsComeBackWithTheirAdapters) {
  EngineOptions options = Options(3);
  options.pool_tokens = kContext;
  StartWith(options, {});
  std::vector<Asked*> asked;
  for (const auto& uses : Choices()) asked.push_back(&AskWith(SomeTokens(100), uses, 60));
  RunAll();
  for (std::size_t i = 0; i < asked.size(); ++i) ExpectBits(*asked[i], Choices()[i]);
}

TEST_P(AdapterPrefixTest, AStoreGivesATextToItsOwnAdapterOnly) {
  TestDirectory directory;
  const auto restart = [&](const std::vector<EngineAdapter>& adapters) {
    scheduler_.reset();
    EngineOptions options = Options();
    options.adapters = adapters;
    engine_ = Open(options);
    std::shared_ptr<Store> disk = OpenDiskStore({.directory = directory.path()}).value();
    ASSERT_TRUE(engine_->UseStore(disk).ok());
    scheduler_ = Scheduler::Make(*engine_, {.recompute_bound = 32}).value();
  };
  const auto run = [&] {
    RunAll();
    EXPECT_EQ(engine_->FlushStore(), "");
  };
  const Tokens prompt = SomeTokens(200);
  restart(adapters_);
  AskWith(prompt, {{0, 1.0f}});
  run();
  restart(adapters_);
  const Asked& none = AskWith(prompt, {});
  const Asked& other = AskWith(prompt, {{1, 1.0f}});
  const Asked& weaker = AskWith(prompt, {{0, 0.5f}});
  run();
  for (const Asked* const asked : {&none, &other, &weaker}) {
    EXPECT_EQ(asked->result.reuse.stored, 0);
  }
  ExpectBits(none, {});
  ExpectBits(other, {{1, 1.0f}});
  ExpectBits(weaker, {{0, 0.5f}});
  // The bytes count, and not the number or the path of the adapter.
  restart({adapters_[1], adapters_[0]});
  const Asked& same = AskWith(prompt, {{1, 1.0f}});
  run();
  EXPECT_GE(same.result.reuse.stored, 96);
  ExpectBits(same, {{0, 1.0f}});
  std::vector<EngineAdapter> changed{MakeAdapter(*base_, {.seed = 77, .largest = 0.1f})};
  changed[0].path = adapters_[0].path;
  restart(changed);
  const Asked& renewed = AskWith(prompt, {{0, 1.0f}});
  run();
  EXPECT_EQ(renewed.result.reuse.stored, 0);
}

TEST_P(AdapterPrefixTest, WrongAdaptersAreRefused) {
  StartWith(Options(), {});
  const auto submit = [&](const Uses& uses) {
    ScheduledRequest request{.prompt = SomeTokens(4)};
    request.adapters = uses;
    return scheduler_->Submit(std::move(request)).status();
  };
  EXPECT_EQ(submit({{2, 1.0f}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(submit({{0, 1.0f}, {0, 1.0f}}).code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Models, AdapterPrefixTest,
                         ::testing::Values("llama", "gemma3", "qwen3next", "llama4"));

}  // namespace
}  // namespace kvcache::adapter_prefix_test
