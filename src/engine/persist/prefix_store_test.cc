// Prefixes that come back from a store, for every kind of cache: the bits are those of a cold run, what is
// not stored is computed, and no error of a store reaches a request.
#include "engine/persist/prefix_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/prefixes/token_keys.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"
#include "store/store_testing.h"

namespace kvcache::prefix_store_test {
namespace {

struct Case {
  std::string name;
  std::string architecture;
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int window = 0;
  int experts = 0;
};

std::vector<std::int32_t> SomeTokens(int count, int seed = 3) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (i * 37 + i / 11 * seed) % 250);
  return tokens;
}

class PrefixStoreTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { path_ = MakeModel(5); }
  void TearDown() override {
    for (const std::string& path : paths_) std::filesystem::remove(path);
  }

  std::string MakeModel(std::uint64_t seed) {
    const Case& model = GetParam();
    make_model::Request request{
        .architecture = model.architecture, .type = DType::kF32, .seed = seed, .threads = 1};
    request.shape.hidden_size = 64;
    request.shape.ffn = 96;
    request.shape.context = 2048;
    request.shape.window = model.window;
    request.shape.experts = model.experts;
    paths_.push_back(::testing::TempDir() + "prefix_store." + std::to_string(getpid()) + "." +
                     std::to_string(seed) + ".gguf");
    const Status made = make_model::MakeModel(request, paths_.back());
    EXPECT_TRUE(made.ok()) << made.message();
    return paths_.back();
  }

  EngineOptions Options() const {
    return {.threads = 1,
            .k_type = GetParam().k_type,
            .v_type = GetParam().v_type,
            .context = 1600,
            .prefill_chunk = 200};
  }

  // An engine over a store in the directory, as a new process would have it.
  std::unique_ptr<Engine> Open(std::shared_ptr<Store> store = nullptr) {
    return Open(path_, Options(), std::move(store));
  }
  std::unique_ptr<Engine> Open(const std::string& path, const EngineOptions& options,
                               std::shared_ptr<Store> store = nullptr) {
    auto engine = Engine::Open(path, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (store == nullptr) {
      auto disk = OpenDiskStore({.directory = directory_.path()});
      EXPECT_TRUE(disk.ok()) << disk.status().message();
      store = std::move(*disk);
    }
    const Status used = (*engine)->UseStore(std::move(store));
    EXPECT_TRUE(used.ok()) << used.message();
    return std::move(*engine);
  }

  struct Run {
    std::vector<float> logits;
    Position stored = 0;
    Position computed = 0;
    std::string problem;
  };
  // Evaluates a prompt as a request does.
  static Run Evaluate(Engine& engine, const std::vector<std::int32_t>& tokens) {
    Run run;
    auto scheduler = Scheduler::Make(engine, {.one_at_a_time = true});
    EXPECT_TRUE(scheduler.ok()) << scheduler.status().message();
    ScheduledRequest request{.prompt = tokens, .max_tokens = 0};
    request.on_logits = [&](Position length, std::span<const float> logits) {
      EXPECT_EQ(length, static_cast<Position>(tokens.size()));
      run.logits.assign(logits.begin(), logits.end());
    };
    request.on_done = [&](const RequestResult& result) {
      EXPECT_TRUE(result.status.ok()) << result.status.message();
      run.stored = result.reuse.stored;
      run.problem = result.reuse.store_problem;
      run.computed = result.reuse.computed;
      EXPECT_EQ(result.reuse.restored + run.computed, static_cast<Position>(tokens.size()));
    };
    EXPECT_TRUE((*scheduler)->Submit(std::move(request)).ok());
    while (*(*scheduler)->Step()) {
    }
    (void)engine.FlushStore();
    return run;
  }
  // Evaluates a prompt without a store.
  std::vector<float> Cold(const std::vector<std::int32_t>& tokens) {
    const auto engine = std::move(Engine::Open(path_, Options())).value();
    Session session(*engine, SequenceId{0});
    EXPECT_TRUE(session.Append(tokens).ok());
    const auto logits = session.LastLogits();
    return {logits->begin(), logits->end()};
  }

  static void ExpectSame(const std::vector<float>& got, const std::vector<float>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
  }

  TestDirectory directory_;
  std::string path_;
  std::vector<std::string> paths_;
};

TEST_P(PrefixStoreTest, GivesTheBitsOfAColdRun) {
  const std::vector<std::int32_t> tokens = SomeTokens(1203);
  const std::vector<float> cold = Cold(tokens);
  const Run first = Evaluate(*Open(), tokens);
  EXPECT_EQ(first.stored, 0);
  ExpectSame(first.logits, cold);
  const Run second = Evaluate(*Open(), tokens);
  EXPECT_GE(second.stored, 1200) << "all but a piece";
  ExpectSame(second.logits, cold);

  // A longer prompt continues from there, and leaves its own end.
  std::vector<std::int32_t> longer = tokens;
  for (const std::int32_t token : SomeTokens(150, 9)) longer.push_back(token);
  const std::vector<float> cold_longer = Cold(longer);
  const Run third = Evaluate(*Open(), longer);
  EXPECT_GE(third.stored, 1200);
  ExpectSame(third.logits, cold_longer);
  const Run fourth = Evaluate(*Open(), longer);
  EXPECT_GE(fourth.stored, 1337);
  ExpectSame(fourth.logits, cold_longer);

  // Another prompt shares the beginning.
  std::vector<std::int32_t> other(tokens.begin(), tokens.begin() + 1100);
  for (const std::int32_t token : SomeTokens(60, 7)) other.push_back(token);
  const Run fifth = Evaluate(*Open(), other);
  EXPECT_GE(fifth.stored, 1024);
  ExpectSame(fifth.logits, Cold(other));
}

TEST_P(PrefixStoreTest, StoresSharedChunksOnce) {
  const auto engine = Open();
  if (!IsDivisible(engine->info().memory)) return;
  const auto objects = [&] {
    const auto all = engine->prefix_store()->store().List();
    return std::count_if(all->begin(), all->end(), [&](const StoredObject& object) {
      return object.id.fingerprint == engine->prefix_store()->fingerprint();
    });
  };
  const auto before = objects();
  (void)Evaluate(*engine, SomeTokens(1024 + 16));
  EXPECT_EQ(objects() - before, 3);
  std::vector<std::int32_t> other = SomeTokens(1024 + 16);
  other.back() += 1;
  (void)Evaluate(*engine, other);
  EXPECT_EQ(objects() - before, 4);
}

TEST_P(PrefixStoreTest, AnotherModelOrTypeMisses) {
  const std::vector<std::int32_t> tokens = SomeTokens(600);
  (void)Evaluate(*Open(), tokens);
  const std::string other = MakeModel(6);
  const Run other_model = Evaluate(*Open(other, Options()), tokens);
  EXPECT_EQ(other_model.stored, 0);
  EXPECT_EQ(other_model.problem,
            "it has the prompt under another fingerprint: the model's file (weights, tokenizer or "
            "settings) differs");
  EngineOptions options = Options();
  options.k_type = options.k_type == DType::kF32 ? DType::kF16 : DType::kF32;
  const Run other_type = Evaluate(*Open(path_, options), tokens);
  EXPECT_EQ(other_type.stored, 0);
  EXPECT_NE(other_type.problem.find("the types of keys and values"), std::string::npos)
      << other_type.problem;
  EXPECT_GT(Evaluate(*Open(), tokens).stored, 0) << "the first one is still there";
}

TEST_P(PrefixStoreTest, NoFaultReachesARequest) {
  const std::vector<std::int32_t> tokens = SomeTokens(700);
  const std::vector<float> cold = Cold(tokens);
  using Fault = FaultyStore::Fault;
  for (const Fault fault :
       {Fault::kErrors, Fault::kExceptions, Fault::kWrongBytes, Fault::kCutBytes}) {
    const std::shared_ptr<Store> disk = std::move(*OpenDiskStore({.directory = directory_.path()}));
    (void)Evaluate(*Open(disk), tokens);
    const auto broken = std::make_shared<FaultyStore>(disk, fault);
    const auto engine = Open(broken);
    broken->is_broken = true;
    const Run run = Evaluate(*engine, tokens);
    EXPECT_EQ(run.stored, 0) << static_cast<int>(fault);
    EXPECT_NE(run.problem, "");
    ExpectSame(run.logits, cold);
  }
}

std::vector<Case> Cases() {
  return {{"llama_f32", "llama", DType::kF32, DType::kF32},
          {"llama_f16", "llama"},
          {"llama_bf16", "llama", DType::kBF16, DType::kBF16},
          {"llama_q8_0", "llama", DType::kQ8_0, DType::kQ8_0},
          {"llama_q4_0", "llama", DType::kQ8_0, DType::kQ4_0},
          {"llama_window", "llama", DType::kF16, DType::kF16, 75},
          {"llama4", "llama4", DType::kF16, DType::kF16, 0, 4},
          {"deepseek2", "deepseek2", DType::kF16, DType::kF16, 0, 4},
          {"gemma3", "gemma3", DType::kF16, DType::kF16, 75},
          {"gpt_oss", "gpt-oss", DType::kF16, DType::kF16, 75, 4},
          {"falcon_h1", "falcon-h1"},
          {"granitehybrid", "granitehybrid"},
          {"lfm2", "lfm2"},
          {"lfm2_window", "lfm2", DType::kF16, DType::kF16, 75},
          {"mamba2", "mamba2"},
          {"mllama", "mllama"},
          {"nemotron_h", "nemotron_h"},
          {"qwen35", "qwen35"},
          {"qwen3next", "qwen3next", DType::kF16, DType::kF16, 0, 4}};
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrefixStoreTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvcache::prefix_store_test
