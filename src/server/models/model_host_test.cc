// Tests ModelHost with the small models that ship.
#include "server/models/model_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "base/strings.h"
#include "kvcache/store.h"
#include "server/embedder_testing.h"

namespace kvcache::server::model_host_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Files final : public ModelSource {
 public:
  Files(std::shared_ptr<Store> store, bool releases_memory)
      : store_(std::move(store)), releases_memory_(releases_memory) {}

  std::vector<ServedModel> List() override { return {Model("story"), Model("story-window")}; }
  Result<ServedModel> Find(const std::string& name) override { return Model(name); }
  Result<std::shared_ptr<Engine>> Open(const ServedModel& model) override {
    ++opened;
    if (model.name == "broken") return Status(StatusCode::kCorrupt, "the file is broken");
    const int sequences = model.name == kManySequences ? 8000 : 2;
    KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine,
                             Engine::Open(model.path, {.threads = 1,
                                                       .context = 256,
                                                       .max_sequences = sequences,
                                                       .releases_memory = releases_memory_}));
    KVCACHE_RETURN_IF_ERROR(engine->UseStore(store_));
    return engine;
  }

  Result<std::shared_ptr<Embedder>> OpenEmbedder(const ServedModel& /*model*/) override {
    return std::shared_ptr<Embedder>(std::make_shared<SimpleEmbedder>());  // of 1,000 bytes
  }

  // The model "story" with large buffers of passes, and with a DRAFT.
  static constexpr const char* kManySequences = "many-sequences";
  static constexpr const char* kWithDraft = "with-draft";

  static ServedModel Model(const std::string& name) {
    const std::string file = name == kManySequences || name == kWithDraft ? "story" : name;
    return {.name = name,
            .bytes = 1000,
            .path = StrCat(KVCACHE_SOURCE_DIR, "/models/", file, ".gguf"),
            .draft = name == kWithDraft ? "draft.gguf" : "",
            .parameters = {{"num_ctx", name == kManySequences ? 255 : 256}}};
  }

  static inline std::atomic<int> opened{0};

 private:
  const std::shared_ptr<Store> store_;
  const bool releases_memory_;
};

class ModelHostTest : public ::testing::Test {
 protected:
  void Start(const ModelHostOptions& options) {
    Files::opened = 0;
    std::shared_ptr<Store> store = std::move(MakeMemoryStore()).value();
    const bool releases_memory = options.scheduler.budget_bytes > 0;
    host_ = ModelHost::Make(std::make_unique<Files>(std::move(store), releases_memory), options);
  }

  // Returns the least budget for one model.
  static std::int64_t MinBudget(const std::string& name) {
    auto engine = Files(std::move(MakeMemoryStore()).value(), true).Open(Files::Model(name));
    EXPECT_TRUE(engine.ok());
    return Scheduler::MinBudget(**engine);
  }

  static std::int64_t Held(const ModelLease& lease) { return lease->counters().held_bytes; }

  // Asks for texts that have no beginning in common until the model takes more than `bytes`. Returns what it takes.
  static std::int64_t Fill(const ModelLease& lease, std::int64_t bytes) {
    for (int i = 0; i < 200 && Held(lease) <= bytes; ++i) {
      (void)Ask(lease, StrCat(i, " ", LongText()));
    }
    return Held(lease);
  }

  Result<ModelLease> Acquire(const std::string& name, std::optional<double> stay = {}) {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Result<ModelLease>> result;
    host_->Acquire(Files::Model(name), stay, [&](Result<ModelLease> lease) {
      const std::lock_guard lock(mutex);
      result.emplace(std::move(lease));
      done.notify_one();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return result.has_value(); });
    return std::move(*result);
  }

  EmbeddingLease AcquireEmbedder(const std::string& name) {
    std::promise<EmbeddingLease> promise;
    host_->AcquireEmbedder(Files::Model(name), {}, [&](Result<EmbeddingLease> lease) {
      EXPECT_TRUE(lease.ok()) << lease.status().message();
      promise.set_value(lease.ok() ? *lease : nullptr);
    });
    return promise.get_future().get();
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const LoadedModel& loaded : host_->Loaded()) names.push_back(loaded.model.name);
    return names;
  }

  // Waits until `names` are loaded, the last asked for first.
  bool BecomesLoaded(const std::vector<std::string>& names) {
    for (int i = 0; i < 1000 && Names() != names; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return Names() == names;
  }

  // Returns whether a model gets this budget. Parts are said a moment after a model has gone.
  static bool BudgetBecomes(const ModelLease& lease, std::int64_t bytes) {
    for (int i = 0; i < 200 && lease->counters().budget_bytes != bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      (void)Ask(lease, "Once");
    }
    return lease->counters().budget_bytes == bytes;
  }

  // Generates a text, and returns how many tokens of its prompt were restored.
  static Position Ask(const ModelLease& lease, const std::string& text) {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<TextResult> result;
    TextRequest request{.prompt = *lease->Encode(text), .max_tokens = 4};
    request.on_done = [&](const TextResult& ended) {
      const std::lock_guard lock(mutex);
      result = ended;
      done.notify_one();
    };
    std::vector<TextRequest> requests;
    requests.push_back(std::move(request));
    EXPECT_TRUE(lease->Submit(std::move(requests)).ok());
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return result.has_value(); });
    EXPECT_TRUE(result->status.ok()) << result->status.message();
    return result->reuse.restored;
  }

  static std::string LongText() {
    std::string text = "Once upon a time";
    for (int i = 0; i < 12; ++i) text += " there was a little cat who liked to play in the garden.";
    return text;
  }

  std::unique_ptr<ModelHost> host_;
};

TEST_F(ModelHostTest, LoadsOnceAndSharesAmongNames) {
  Start({});
  EXPECT_THAT(Names(), ElementsAre());
  const auto first = Acquire("story");
  const auto second = Acquire("story");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->get(), second->get());
  const auto other = Acquire("story-window");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(Files::opened, 2);
  EXPECT_THAT(Names(), ElementsAre("story-window", "story"));
  const auto drafting = Acquire(Files::kWithDraft);
  ASSERT_TRUE(drafting.ok());
  EXPECT_NE(drafting->get(), first->get()) << "the same weights with a draft are another engine";
}

TEST_F(ModelHostTest, LetsGoWhenTheTimeIsOver) {
  Start({.stay_seconds = 0.05});
  {
    const auto lease = Acquire("story");
    ASSERT_TRUE(lease.ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    EXPECT_THAT(Names(), ElementsAre("story")) << "it is in use";
  }
  EXPECT_TRUE(BecomesLoaded({}));
  (void)Acquire("story", 300.0);
  std::vector<LoadedModel> looked = host_->Loaded();
  ASSERT_EQ(looked.size(), 1u);
  EXPECT_GT(looked[0].seconds_left, 200.0);
  EXPECT_LE(looked[0].seconds_left, 300.0);
  looked.clear();
  (void)Acquire("story", 0.05);
  EXPECT_TRUE(BecomesLoaded({})) << "to look at a model is no use of it";
  // A request's time replaces the host's, and Unload both.
  (void)Acquire("story", kForever);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_THAT(Names(), ElementsAre("story"));
  EXPECT_EQ(host_->Loaded()[0].seconds_left, kForever);
  host_->Unload(Files::Model("story"));
  EXPECT_TRUE(BecomesLoaded({}));
}

// A, B, A with room for one: what A had computed comes back with it.
TEST_F(ModelHostTest, WhatAModelHadCachedIsFoundAgain) {
  for (const char* const name : {"story", "story-hybrid"}) {
    SCOPED_TRACE(name);
    Start({.max_loaded = 1});
    auto lease = Acquire(name);
    ASSERT_TRUE(lease.ok());
    const auto tokens = static_cast<Position>((*lease)->Encode(LongText())->tokens.size());
    EXPECT_EQ(Ask(*lease, LongText()), 0);
    *lease = nullptr;
    auto other = Acquire("story-window");
    ASSERT_TRUE(other.ok());
    EXPECT_THAT(Names(), ElementsAre("story-window"));
    EXPECT_EQ(Ask(*other, LongText()), 0) << "another model's prefixes are not its own";
    *other = nullptr;
    lease = Acquire(name);
    ASSERT_TRUE(lease.ok());
    EXPECT_EQ(Files::opened, 3);
    EXPECT_GE(Ask(*lease, LongText()), tokens * 9 / 10);
    EXPECT_EQ(host_->counters().requests, 3) << "models that left count";
    *lease = nullptr;
  }
}

// A model in use is not taken away, and one that must leave gets no more requests.
TEST_F(ModelHostTest, TheOldestLeavesWhenItsRequestsEnd) {
  Start({.max_loaded = 2});
  auto story = Acquire("story");
  auto window = Acquire("story-window");
  ASSERT_TRUE(story.ok() && window.ok());
  std::atomic<int> order{0};
  std::atomic<int> hybrid_at{0}, story_at{0};
  host_->Acquire(Files::Model("story-hybrid"), {}, [&](const Result<ModelLease>& lease) {
    EXPECT_TRUE(lease.ok());
    hybrid_at = ++order;
  });
  // Until the host's thread has seen it, "story" is there for everyone.
  ASSERT_TRUE(BecomesLoaded({"story-window"}));
  host_->Acquire(Files::Model("story"), {}, [&](const Result<ModelLease>& lease) {
    EXPECT_TRUE(lease.ok());
    story_at = ++order;
  });
  EXPECT_TRUE(Acquire("story-window").ok()) << "others go on";
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(order, 0);
  EXPECT_EQ(Ask(*story, "It still works."), 0);
  *story = nullptr;
  *window = nullptr;
  EXPECT_TRUE(BecomesLoaded({"story", "story-hybrid"}));
  // A model is in the list a moment before those who wait for it hear of it.
  for (int i = 0; i < 1000 && order != 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(hybrid_at, 1);
  EXPECT_EQ(story_at, 2);
}

TEST_F(ModelHostTest, BytesAreALimitToo) {
  Start({.max_bytes = 1500});
  ASSERT_TRUE(Acquire("story").ok());
  ASSERT_TRUE(Acquire("story-window").ok());
  EXPECT_THAT(Names(), ElementsAre("story-window"));
  Start({.max_bytes = 500});
  EXPECT_TRUE(Acquire("story").ok()) << "one model is always allowed";
}

// A model alone has the whole budget, and gives half of it back before another one is loaded.
TEST_F(ModelHostTest, ModelsShareOneBudget) {
  const std::int64_t min = std::max(MinBudget("story"), MinBudget("story-window"));
  const std::int64_t budget = 3 * min;
  Start({.scheduler = {.budget_bytes = budget, .free_memory_share = 0.0}});
  auto story = Acquire("story");
  ASSERT_TRUE(story.ok());
  EXPECT_GT(Fill(*story, budget / 2), budget / 2);
  EXPECT_LE(Held(*story), budget);
  auto window = Acquire("story-window");
  ASSERT_TRUE(window.ok());
  EXPECT_LE(Held(*story), budget / 2) << "it gave back what it had above its part";
  for (int i = 0; i < 20; ++i) {
    (void)Ask(*story, StrCat(i, " there. ", LongText()));
    (void)Ask(*window, StrCat(i, " here. ", LongText()));
    ASSERT_LE(Held(*story), budget / 2);
    ASSERT_LE(Held(*window), budget / 2);
  }
  *window = nullptr;
  host_->Unload(Files::Model("story-window"));
  ASSERT_TRUE(BecomesLoaded({"story"}));
  EXPECT_GT(Fill(*story, budget / 2), budget / 2) << "alone it has the whole budget again";
  EXPECT_LE(Held(*story), budget);
  *story = nullptr;
}

// A model that embeds takes its bytes of the budget, and no equal part.
TEST_F(ModelHostTest, EmbeddersTakeWhatTheyNeed) {
  const std::int64_t min = std::max(MinBudget("story"), MinBudget("story-window"));
  const std::int64_t budget = 2 * min + 1000;
  Start({.scheduler = {.budget_bytes = budget, .free_memory_share = 0.0}});
  auto story = Acquire("story");
  ASSERT_TRUE(story.ok());
  EXPECT_EQ((*story)->counters().budget_bytes, budget);
  EmbeddingLease embedder = AcquireEmbedder("embeds");
  ASSERT_NE(embedder, nullptr);
  (void)Ask(*story, "Once");
  EXPECT_EQ((*story)->counters().budget_bytes, 2 * min);
  auto window = Acquire("story-window");  // half of the rest is just enough
  ASSERT_TRUE(window.ok());
  EXPECT_THAT(Names(), ElementsAre("story-window", "embeds", "story"));
  (void)Ask(*story, "Once");
  EXPECT_EQ((*story)->counters().budget_bytes, min);
  EXPECT_EQ((*window)->counters().budget_bytes, min);
  embedder = nullptr;
  ServedModel embeds = Files::Model("embeds");
  embeds.embeds = true;
  host_->Unload(embeds);
  ASSERT_TRUE(BecomesLoaded({"story-window", "story"}));
  EXPECT_TRUE(BudgetBecomes(*story, budget / 2));
  *story = nullptr;
  *window = nullptr;
}

// One byte less, and the model that was asked for longest ago goes.
TEST_F(ModelHostTest, EmbeddersMakeOthersGo) {
  const std::int64_t min = MinBudget("story");
  Start({.scheduler = {.budget_bytes = min + 999, .free_memory_share = 0.0}});
  ASSERT_TRUE(Acquire("story").ok());
  ASSERT_NE(AcquireEmbedder("embeds"), nullptr);
  EXPECT_THAT(Names(), ElementsAre("embeds"));
  ASSERT_TRUE(Acquire("story").ok());
  EXPECT_THAT(Names(), ElementsAre("story"));
}

TEST_F(ModelHostTest, WithoutRoomForTwoTheOldestLeaves) {
  const std::int64_t min = std::max(MinBudget("story"), MinBudget("story-window"));
  Start({.scheduler = {.budget_bytes = 2 * min - 2, .free_memory_share = 0.0}});
  auto story = Acquire("story");
  ASSERT_TRUE(story.ok());
  EXPECT_EQ(Ask(*story, LongText()), 0);
  *story = nullptr;
  auto window = Acquire("story-window");
  ASSERT_TRUE(window.ok());
  EXPECT_EQ(Ask(*window, LongText()), 0);
  EXPECT_THAT(Names(), ElementsAre("story-window"));
  EXPECT_EQ(Files::opened, 2) << "a model that waits for its part is not opened again";
  *window = nullptr;
}

// The other model comes while this one generates.
TEST_F(ModelHostTest, ModelsThatGenerateGiveBackToo) {
  const std::int64_t min = std::max(MinBudget("story"), MinBudget("story-window"));
  const std::int64_t budget = 2 * min;
  Start({.scheduler = {.budget_bytes = budget, .free_memory_share = 0.0}});
  auto story = Acquire("story");
  ASSERT_TRUE(story.ok());
  EXPECT_GT(Fill(*story, budget / 2), budget / 2);
  std::atomic<bool> ends{false};
  std::thread user([&] {
    for (int i = 0; !ends; ++i) (void)Ask(*story, StrCat("Number ", i, ". ", LongText()));
  });
  auto window = Acquire("story-window");
  ASSERT_TRUE(window.ok());
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(Held(*story), budget / 2);
    EXPECT_LE(Held(*window), budget / 2);
    (void)Ask(*window, StrCat(i, " here. ", LongText()));
  }
  ends = true;
  user.join();
  *story = nullptr;
  *window = nullptr;
}

TEST_F(ModelHostTest, AModelThatCannotHaveABudgetMakesNoOtherGo) {
  Start({.scheduler = {.budget_bytes = 2 * MinBudget("story"), .free_memory_share = 0.0}});
  ASSERT_TRUE(Acquire("story").ok());
  const auto large = Acquire(Files::kManySequences);
  EXPECT_EQ(large.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Names(), ElementsAre("story"));
}

TEST_F(ModelHostTest, ABudgetForNoModelIsAnError) {
  Start({.scheduler = {.budget_bytes = 1000, .free_memory_share = 0.0}});
  const auto story = Acquire("story");
  EXPECT_EQ(story.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(story.status().message(), HasSubstr("1000"));
}

TEST_F(ModelHostTest, ErrorsAreGivenAndOthersGoOn) {
  Start({});
  const auto broken = Acquire("broken");
  EXPECT_EQ(broken.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(broken.status().message(), HasSubstr("broken"));
  EXPECT_TRUE(Acquire("story").ok());
  EXPECT_TRUE(host_->idle());
  host_->StopAccepting();
  EXPECT_EQ(Acquire("story").status().code(), StatusCode::kCancelled);
}

TEST_F(ModelHostTest, TooManyWaitAndTheEndTellsThem) {
  Start({.max_loaded = 1, .max_waiting = 1});
  auto story = Acquire("story");
  ASSERT_TRUE(story.ok());
  std::atomic<int> ended{0};
  host_->Acquire(Files::Model("story-window"), {}, [&](const Result<ModelLease>& lease) {
    EXPECT_EQ(lease.status().code(), StatusCode::kCancelled);
    ++ended;
  });
  EXPECT_EQ(Acquire("story-hybrid").status().code(), StatusCode::kCacheFull);
  EXPECT_FALSE(host_->idle());
  host_->EndAll();
  EXPECT_EQ(ended, 1);
  *story = nullptr;
}

// Many threads ask for three models, of which two fit.
TEST_F(ModelHostTest, ManyAskAtOnce) {
  Start({.max_loaded = 2, .stay_seconds = 0.01});
  std::atomic<int> served{0};
  {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const char* const names[] = {"story", "story-window", "story-hybrid"};
        for (int j = 0; j < 8; ++j) {
          const auto lease = Acquire(names[(i + j) % 3]);
          ASSERT_TRUE(lease.ok());
          (void)Ask(*lease, "Once upon a time");
          (void)host_->Loaded();
          ++served;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(served, 32);
  EXPECT_EQ(host_->counters().requests, 32);
  EXPECT_TRUE(BecomesLoaded({}));
}

}  // namespace
}  // namespace kvcache::server::model_host_test
