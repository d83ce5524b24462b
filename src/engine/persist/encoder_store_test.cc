// Encoder outputs that come back from a store: the bits are those of an encoding, another text is encoded, and
// no error of a store reaches a session.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/persist/encoder_store_testing.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/encoder_cache.h"
#include "kvcache_engine/chat.h"
#include "kvcache_engine/generate.h"
#include "support/failing_backend.h"

namespace kvcache::encoder_store_test {
namespace {

using Fault = FaultyStore::Fault;

class EncoderStoreTest : public EncoderStoreFixture {
 protected:
  struct Read {
    std::vector<std::vector<float>> logits;  // after the first token, and after each answer's token
    ReuseReport reuse;
  };
  // Answers a text with a few tokens.
  static Read Evaluate(Engine& engine, const Tokens& text) {
    Read read;
    auto scheduler = Scheduler::Make(engine, {.one_at_a_time = true});
    EXPECT_TRUE(scheduler.ok()) << scheduler.status().message();
    ScheduledRequest request{.prompt = text, .sampling = {.temperature = 0.0f}, .max_tokens = 4};
    request.on_logits = [&](Position, std::span<const float> logits) {
      read.logits.emplace_back(logits.begin(), logits.end());
    };
    request.on_done = [&](const RequestResult& result) {
      EXPECT_TRUE(result.status.ok()) << result.status.message();
      read.reuse = result.reuse;
    };
    EXPECT_TRUE((*scheduler)->Submit(std::move(request)).ok());
    while (*(*scheduler)->Step()) {
    }
    (void)engine.FlushStore();
    return read;
  }
  Read Cold(const Tokens& text) { return Evaluate(*Open(nullptr), text); }

  static void ExpectSame(const Read& got, const Read& expected) {
    ASSERT_EQ(got.logits.size(), expected.logits.size());
    for (std::size_t i = 0; i < got.logits.size(); ++i) {
      ASSERT_EQ(got.logits[i].size(), expected.logits[i].size());
      EXPECT_EQ(std::memcmp(got.logits[i].data(), expected.logits[i].data(),
                            got.logits[i].size() * sizeof(float)),
                0)
          << "after " << i + 1 << " tokens";
    }
  }
  static void ExpectStored(const ReuseReport& reuse, const Tokens& text, StoreTier tier) {
    const auto size = static_cast<Position>(text.size());
    TokensByTier tiers{};
    tiers[static_cast<std::size_t>(tier)] = size;
    EXPECT_EQ(reuse.stored, size);
    EXPECT_EQ(reuse.tiers, tiers);
    EXPECT_GT(reuse.store_ms, 0.0);
    EXPECT_EQ(reuse.store_problem, "");
  }
  static ObjectId IdOf(Engine& engine, const Tokens& text) {
    return *engine.prefix_store()->keys().OutputId(text, 0);
  }
};

TEST_P(EncoderStoreTest, GivesTheBitsOfAnEncoding) {
  const std::shared_ptr<Store> memory = Memory();
  for (const bool is_disk : {true, false}) {
    for (const int size : {1, 5, 33, 320}) {
      const Tokens text = Text(size);
      const Read cold = Cold(text);
      const Read first = Evaluate(*Open(is_disk ? Disk() : memory), text);
      EXPECT_EQ(first.reuse.stored, 0);
      EXPECT_EQ(first.reuse.store_problem, "");
      ExpectSame(first, cold);
      // A process that has encoded nothing yet.
      const Read second = Evaluate(*Open(is_disk ? Disk() : memory), text);
      ExpectStored(second.reuse, text, is_disk ? StoreTier::kDisk : StoreTier::kMemory);
      ExpectSame(second, cold);
    }
  }
}

TEST_P(EncoderStoreTest, OtherSettingsOfTheEngineTakeTheSameOutput) {
  const Tokens text = Text(70);
  const Read cold = Cold(text);
  (void)Evaluate(*Open(Disk()), text);
  EngineOptions options = Options(3);
  options.threads = 2;
  options.context = 100;
  options.prefill_chunk = 1;
  const Read warm = Evaluate(*Open(path_, options, Disk()), text);
  ExpectStored(warm.reuse, text, StoreTier::kDisk);
  ExpectSame(warm, cold);
  // The memory of an engine that gives it back to the system.
  options.pool_tokens = 512;
  options.releases_memory = true;
  const auto engine = Open(path_, options, Disk());
  const Read again = Evaluate(*engine, text);
  ExpectStored(again.reuse, text, StoreTier::kDisk);
  ExpectSame(again, cold);
  EXPECT_EQ(engine->cache().snapshots()->SnapshotBytes(), 0);
}

TEST_P(EncoderStoreTest, OneEngineReadsSeveralTexts) {
  const Tokens texts[] = {Text(40), Text(41), Text(39), Text(40, 4)};
  const auto engine = Open(Disk());
  for (const Tokens& text : texts) {
    const Read read = Evaluate(*engine, text);
    EXPECT_EQ(read.reuse.stored, 0) << "it begins like another one, and is another text";
    ExpectSame(read, Cold(text));
  }
  EXPECT_EQ(Outputs(*engine), 4);
  for (const Tokens& text : texts) {
    const Read read = Evaluate(*engine, text);
    ExpectStored(read.reuse, text, StoreTier::kDisk);
    ExpectSame(read, Cold(text));
  }
  EXPECT_EQ(Outputs(*engine), 4);
}

TEST_P(EncoderStoreTest, AnswersAreTheSame) {
  GenerateRequest request;
  request.prompt = Text(50);
  request.max_tokens = 12;
  request.sampling = {.temperature = 1.0f, .seed = 7};
  const auto answer = [&](std::shared_ptr<Store> store) {
    const auto engine = Open(std::move(store));
    auto scheduler = Scheduler::Make(*engine, {.one_at_a_time = true});
    EXPECT_TRUE(scheduler.ok()) << scheduler.status().message();
    auto result = Generate(**scheduler, request);
    EXPECT_TRUE(result.ok()) << result.status().message();
    (void)engine->FlushStore();
    return std::move(*result);
  };
  const GenerateResult cold = answer(nullptr);
  const GenerateResult first = answer(Disk());
  EXPECT_EQ(first.tokens, cold.tokens);
  EXPECT_EQ(first.computed_tokens, 50);
  EXPECT_EQ(first.reuse.stored, 0);
  const GenerateResult second = answer(Disk());
  EXPECT_EQ(second.tokens, cold.tokens);
  EXPECT_EQ(second.text, cold.text);
  EXPECT_EQ(second.prompt_tokens, 50);
  EXPECT_EQ(second.computed_tokens, 0);
  ExpectStored(second.reuse, request.prompt, StoreTier::kDisk);
}

TEST_P(EncoderStoreTest, AChatReportsWhatTheStoreGave) {
  const auto answer = [&] {
    const auto engine = Open(Disk());
    ChatOptions options;
    options.template_source = "{{ messages[0].content }}";
    auto chat = Chat::Open(*engine, options);
    EXPECT_TRUE(chat.ok()) << chat.status().message();
    (*chat)->conversation().Add("user", "the same question");
    GenerateRequest request;
    request.max_tokens = 4;
    request.sampling.temperature = 0.0f;
    auto turn = (*chat)->Answer(std::move(request));
    EXPECT_TRUE(turn.ok()) << turn.status().message();
    (void)engine->FlushStore();
    return std::move(*turn);
  };
  const ChatTurn first = answer();
  EXPECT_EQ(first.result.reuse.stored, 0);
  EXPECT_EQ(first.result.computed_tokens, first.result.prompt_tokens);
  const ChatTurn second = answer();
  EXPECT_EQ(second.result.tokens, first.result.tokens);
  EXPECT_EQ(second.result.prompt_tokens, first.result.prompt_tokens);
  EXPECT_EQ(second.result.reuse.stored, first.result.prompt_tokens);
  EXPECT_EQ(second.result.reuse.restored, second.result.reuse.stored);
  EXPECT_EQ(second.result.reuse.matched, second.result.reuse.stored);
  EXPECT_EQ(second.result.computed_tokens, 0) << "those that were not kept";
}

TEST_P(EncoderStoreTest, ASaltAndAPrefixHaveOtherNames) {
  const auto engine = Open(Disk());
  const PrefixKeys& keys = engine->prefix_store()->keys();
  const Tokens text = Text(16);
  const ObjectId id = *keys.OutputId(text, 0);
  EXPECT_FALSE(id == *keys.OutputId(text, 1));
  EXPECT_FALSE(id == *keys.OutputId(std::span(text).first(15), 0));
  const auto chain = *keys.Chain(text, 0);
  EXPECT_FALSE(id == *keys.StateId(chain, text));
  const auto pieces = *keys.Divide(text, PrefixKeys::kMinPiece, *keys.Nothing(0),
                                   [](const ObjectId&) { return true; });
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_FALSE(id == pieces[0].id);
}

TEST_P(EncoderStoreTest, AnotherModelOrTypeMisses) {
  const Tokens text = Text(60);
  (void)Evaluate(*Open(Disk()), text);
  const Read other_model = Evaluate(*Open(MakeModel(6), Options(), Disk()), text);
  EXPECT_EQ(other_model.reuse.stored, 0);
  EXPECT_EQ(other_model.reuse.store_problem,
            "it has the text under another fingerprint: the model's file (weights, tokenizer or "
            "settings) differs");
  EngineOptions options = Options();
  options.k_type = options.k_type == DType::kF32 ? DType::kF16 : DType::kF32;
  const Read other_type = Evaluate(*Open(path_, options, Disk()), text);
  EXPECT_EQ(other_type.reuse.stored, 0);
  EXPECT_NE(other_type.reuse.store_problem.find("the types of keys and values"), std::string::npos)
      << other_type.reuse.store_problem;
  const Read other_text = Evaluate(*Open(MakeModel(7), Options(), Disk()), Text(61));
  EXPECT_EQ(other_text.reuse.store_problem, "") << "nobody has this text";
  ExpectStored(Evaluate(*Open(Disk()), text).reuse, text, StoreTier::kDisk);
}

TEST_P(EncoderStoreTest, NoFaultReachesASession) {
  const Tokens text = Text(70);
  const Read cold = Cold(text);
  for (const bool is_disk : {true, false}) {
    const std::shared_ptr<Store> store = is_disk ? Disk() : Memory();
    for (const Fault fault :
         {Fault::kErrors, Fault::kExceptions, Fault::kWrongBytes, Fault::kCutBytes}) {
      (void)Evaluate(*Open(store), text);
      const auto broken = std::make_shared<FaultyStore>(store, fault);
      const auto engine = Open(broken);
      broken->is_broken = true;
      const Read read = Evaluate(*engine, text);
      EXPECT_EQ(read.reuse.stored, 0) << static_cast<int>(fault);
      EXPECT_NE(read.reuse.store_problem, "");
      ExpectSame(read, cold);
      // What was refused is gone, and was stored again.
      broken->is_broken = false;
      const Read again = Evaluate(*engine, text);
      EXPECT_EQ(again.reuse.stored, static_cast<Position>(text.size()));
      ExpectSame(again, cold);
    }
  }
}

// One flipped bit on the disk, anywhere in the object, is found by its checksums.
TEST_P(EncoderStoreTest, ADamagedObjectIsAMiss) {
  const Tokens text = Text(30);
  const Read cold = Cold(text);
  const std::shared_ptr<Store> memory = Memory();
  const auto engine = Open(memory);
  (void)Evaluate(*engine, text);
  const ObjectId id = IdOf(*engine, text);
  const std::vector<std::byte> whole = *ReadObject(*memory, id);
  // No payload that is not the whole output is taken, whatever its checksums say.
  for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 40) {
    ASSERT_TRUE(memory->Put(id, std::span(whole).first(size)).ok());
    const Read read = Evaluate(*engine, text);
    EXPECT_EQ(read.reuse.stored, 0);
    EXPECT_NE(read.reuse.store_problem, "");
    ExpectSame(read, cold);
  }
  EXPECT_EQ(*ReadObject(*memory, id), whole) << "it was stored again";
}

// Objects that are sound, but not what their name says.
TEST_P(EncoderStoreTest, AnotherOutputUnderTheNameIsRefused) {
  const Tokens text = Text(30);
  const Read cold = Cold(text);
  const std::shared_ptr<Store> memory = Memory();
  const auto other = Open(path_, Options(), memory);
  (void)Evaluate(*other, Text(31));
  const std::vector<std::byte> longer = *ReadObject(*memory, IdOf(*other, Text(31)));
  const auto layers = Open(MakeModel(5, 4), Options(), memory);
  (void)Evaluate(*layers, text);
  const std::vector<std::byte> more_layers = *ReadObject(*memory, IdOf(*layers, text));
  for (const bool is_longer : {true, false}) {
    const auto engine = Open(memory);  // its layers have no memory yet
    const ObjectId id = IdOf(*engine, text);
    ASSERT_TRUE(memory->Put(id, is_longer ? longer : more_layers).ok());
    const Read read = Evaluate(*engine, text);
    EXPECT_EQ(read.reuse.stored, 0);
    const char* const why = is_longer ? "the snapshot's output has 31 tokens; must have 30"
                                      : "the snapshot is of a cache";  // another one
    EXPECT_NE(read.reuse.store_problem.find(why), std::string::npos) << read.reuse.store_problem;
    ExpectSame(read, cold);
    ExpectStored(Evaluate(*engine, text).reuse, text, StoreTier::kMemory);
  }
}

// Has objects, and cannot read them.
class UnreadableStore final : public Store {
 public:
  explicit UnreadableStore(std::shared_ptr<Store> store) : inner_(std::move(store)) {}

  Status Get(const ObjectId& /*id*/, const Reader& /*reader*/) override {
    return {StatusCode::kIo, "no answer in time"};
  }
  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    return inner_->Put(id, payload);
  }
  Result<bool> Contains(const ObjectId& id) override { return inner_->Contains(id); }
  void Touch(std::span<const ObjectId> ids) override { inner_->Touch(ids); }
  Status Remove(const ObjectId& id) override { return inner_->Remove(id); }
  Result<std::vector<StoredObject>> List() override { return inner_->List(); }
  Result<StoreStats> Usage() override { return inner_->Usage(); }
  StoreTier tier() const override { return StoreTier::kRemote; }

 private:
  const std::shared_ptr<Store> inner_;
};

// One of two stores has the output and does not give it: the other one gets it.
TEST_P(EncoderStoreTest, AnEncodingGoesToEachStore) {
  const Tokens text = Text(40);
  const Read cold = Cold(text);
  const std::shared_ptr<Store> remote = Memory();
  (void)Evaluate(*Open(remote), text);
  const auto both = [&]() -> std::shared_ptr<Store> {
    return std::move(*MakeTieredStore({Disk(), std::make_shared<UnreadableStore>(remote)}));
  };
  const Read first = Evaluate(*Open(both()), text);
  EXPECT_EQ(first.reuse.stored, 0);
  EXPECT_NE(first.reuse.store_problem, "");
  ExpectSame(first, cold);
  const Read second = Evaluate(*Open(both()), text);
  ExpectStored(second.reuse, text, StoreTier::kDisk);
  ExpectSame(second, cold);
}

// A kernel fails while an output is restored, or in the pass after it.
TEST_P(EncoderStoreTest, AFailedRestoreLeavesNothing) {
  const Tokens text = Text(30);
  const Read cold = Cold(text);
  const std::shared_ptr<Store> memory = Memory();
  (void)Evaluate(*Open(memory), text);
  auto backend = std::make_unique<testing::FailingBackend>(*MakeCpuBackend({.threads = 1}));
  testing::FailingBackend* const failing = backend.get();
  const auto engine = Open(path_, Options(), memory, std::move(backend));
  const GenerateRequest request{.prompt = text, .max_tokens = 4, .sampling = {.temperature = 0.0f}};
  const Tokens expected = [&] {
    const auto other = Open(nullptr);
    return Generate(**Scheduler::Make(*other, {}), request)->tokens;
  }();
  int failed = 0;  // passes that fail once are tried again
  int refused = 0;
  for (int n = 1; n < 400; ++n) {
    failing->FailNth(n);
    const auto scheduler = std::move(*Scheduler::Make(*engine, {.one_at_a_time = true}));
    const auto result = Generate(*scheduler, request);
    const bool is_injected = !failing->failure_pending();
    failing->FailNth(0);
    failed += result.ok() ? 0 : 1;
    refused += result.ok() && !result->reuse.store_problem.empty() ? 1 : 0;
    if (result.ok()) {
      EXPECT_EQ(result->tokens, expected);
    }
    if (!is_injected) break;
    EXPECT_FALSE(engine->cache().Encoder()->EncoderCached(SequenceId{0}));
    (void)engine->FlushStore();
    const Read read = Evaluate(*engine, text);
    ExpectSame(read, cold);
  }
  EXPECT_EQ(failed, 0);
  EXPECT_GT(refused, 0);
}

TEST_P(EncoderStoreTest, AnInterruptAndATextThatDoesNotFitLeaveNothing) {
  const Tokens text = Text(30);
  const auto engine = Open(Disk());
  const std::atomic<bool> interrupt{true};
  const auto generate = [&](Tokens prompt, const std::atomic<bool>* stop) {
    const auto scheduler = std::move(*Scheduler::Make(*engine, {.one_at_a_time = true}));
    auto result =
        Generate(*scheduler, {.prompt = std::move(prompt), .max_tokens = 1, .interrupt = stop});
    (void)engine->FlushStore();
    return result;
  };
  EXPECT_EQ(generate(text, &interrupt)->stop, StopReason::kInterrupted);
  EXPECT_FALSE(engine->cache().Encoder()->EncoderCached(SequenceId{0}));
  EXPECT_EQ(generate(text, nullptr)->reuse.stored, 0);
  EXPECT_EQ(generate(text, &interrupt)->computed_tokens, 0);
  EXPECT_FALSE(engine->cache().Encoder()->EncoderCached(SequenceId{0}));
  EXPECT_EQ(generate(Text(kContext + 1), nullptr).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(generate({}, nullptr).status().message(), "the prompt is empty");
  ExpectStored(generate(text, nullptr)->reuse, text, StoreTier::kDisk);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EncoderStoreTest, ::testing::ValuesIn(EncoderCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvcache::encoder_store_test
