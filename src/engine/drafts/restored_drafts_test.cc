// What a draft head reads behind a restored text: the state of the text's last token comes back with it, so
// that the head's keys and values and its drafts have the bits of a text that was evaluated at once.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "engine/prefixes/token_keys.h"
#include "kvcache/wrapper_cache.h"
#include "kvcache_engine/head_drafter.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"
#include "store/snapshot_description.h"
#include "store/store_testing.h"
#include "support/assistant_pair.h"

namespace kvcache::restored_drafts_test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Row = std::vector<float>;
using Bytes = std::vector<std::byte>;

struct Kind {
  const char* name;
  const char* architecture;
  int experts = 0;
  int window = 0;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

// What the head has behind a text.
struct Seen {
  Row last;       // the state of the last token
  Bytes head;     // exported keys and values of the head; none if it has none
  Tokens drafts;  // behind a token that follows
  bool operator==(const Seen&) const = default;
};

Tokens SomeTokens(int count, int seed = 0) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (seed + i * 37 + i / 11 * 5) % 250);
  return tokens;
}

Tokens Joined(std::span<const std::int32_t> first, std::span<const std::int32_t> second) {
  Tokens tokens(first.begin(), first.end());
  tokens.insert(tokens.end(), second.begin(), second.end());
  return tokens;
}

Bytes HeadBytes(Engine& engine, SequenceId sequence, Position length) {
  if (engine.model().head_reads_cache()) return {};
  Cache& head = CacheOfLayer(engine.cache(), engine.info().layers);
  const auto snapshot = head.snapshots()->TakeSnapshot(sequence, 0, length);
  EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
  Bytes bytes(static_cast<std::size_t>(*head.snapshots()->ExportSize(**snapshot)));
  EXPECT_TRUE(head.snapshots()->Export(**snapshot, bytes).ok());
  return bytes;
}

// Looks at a sequence that has evaluated `text`.
Seen Look(Engine& engine, SequenceId sequence, std::span<const std::int32_t> text) {
  Seen seen;
  const auto length = static_cast<Position>(text.size());
  const std::span<const float> last = LastState(engine, sequence, length);
  seen.last.assign(last.begin(), last.end());
  seen.head = HeadBytes(engine, sequence, length);
  const auto drafter = *MakeHeadDrafter(engine);
  drafter->SetSequence(sequence);
  const std::int32_t next[] = {9};
  EXPECT_TRUE(drafter->Begin(Joined(text, next)).ok());
  EXPECT_TRUE(drafter->Propose(5, seen.drafts).ok());
  return seen;
}
Seen Look(Engine& engine, const Session& session) {
  return Look(engine, session.sequence(), session.tokens());
}

class RestoredDraftsTest : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr int kContext = 800;

  void SetUp() override {
    const std::string folder = ::testing::TempDir() + "restored." + std::to_string(getpid());
    if (IsAssistant()) {
      pair_ = std::make_unique<testing::AssistantPair>(folder);
      return;
    }
    path_ = folder + ".gguf";
    make_model::Request request{.architecture = GetParam().architecture, .type = DType::kF32};
    request.shape.experts = GetParam().experts;
    if (GetParam().window > 0) {
      request.shape.window = GetParam().window;
      request.shape.window_pattern = 2;
    }
    request.shape.family.nextn_layers = 1;
    ASSERT_TRUE(make_model::MakeModel(request, path_).ok());
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove(path_);
  }

  static bool IsAssistant() { return std::string(GetParam().architecture) == "gemma4"; }

  std::unique_ptr<Engine> Open(const std::shared_ptr<Store>& store = nullptr, bool drafts = true) {
    const std::string model = pair_ ? pair_->model() : path_;
    const std::string head = pair_ ? pair_->head() : path_;
    auto engine = Engine::Open(model, {.threads = 2,
                                       .context = kContext,
                                       .max_sequences = 2,
                                       .prefill_chunk = 200,
                                       .draft_head = drafts ? head : ""});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (store != nullptr) {
      EXPECT_TRUE((*engine)->UseStore(store).ok());
    }
    return std::move(engine).value();
  }

  // Returns what the head has behind a text that was evaluated at once.
  Seen AtOnce(std::span<const std::int32_t> text) {
    const auto engine = Open();
    Session session(*engine, SequenceId{0});
    EXPECT_TRUE(session.Append(text).ok());
    const Seen seen = Look(*engine, session);
    EXPECT_EQ(std::ssize(seen.last), engine->info().hidden_size);
    EXPECT_EQ(seen.head.empty(), IsAssistant());
    EXPECT_EQ(std::ssize(seen.drafts), 5);
    return seen;
  }

  // Evaluates a text as a request does.
  struct Evaluated {
    ReuseReport reuse{};
    Seen seen{};
    Row logits{};
  };
  static Evaluated Evaluate(Scheduler& scheduler, const Tokens& text) {
    Evaluated evaluated;
    Engine& engine = scheduler.engine();
    ScheduledRequest request{.prompt = text, .max_tokens = 0};
    request.on_logits = [&](Position length, std::span<const float> logits) {
      EXPECT_EQ(length, std::ssize(text));
      evaluated.logits.assign(logits.begin(), logits.end());
      if (engine.has_draft_head()) evaluated.seen = Look(engine, SequenceId{0}, text);
    };
    request.on_done = [&](const RequestResult& result) { evaluated.reuse = result.reuse; };
    EXPECT_TRUE(scheduler.Submit(std::move(request)).ok());
    while (*scheduler.Step()) {
    }
    return evaluated;
  }
  static Evaluated Evaluate(Engine& engine, const Tokens& text) {
    return Evaluate(**Scheduler::Make(engine, {.one_at_a_time = true}), text);
  }

  // Restores the beginning of `text` that is found, evaluates the rest, and compares the whole with the same text at
  // once.
  void ExpectExact(Scheduler& scheduler, const Tokens& text, Position restored) {
    const Evaluated evaluated = Evaluate(scheduler, text);
    EXPECT_EQ(evaluated.reuse.store_problem, "");
    EXPECT_EQ(evaluated.reuse.restored, restored);
    EXPECT_EQ(evaluated.seen, AtOnce(text));
  }

  std::string path_;
  std::unique_ptr<testing::AssistantPair> pair_;
};

TEST_P(RestoredDraftsTest, FromPrefixes) {
  const auto engine = Open();
  const auto scheduler = std::move(*Scheduler::Make(*engine, {.one_at_a_time = true}));
  const Tokens text = SomeTokens(201);  // its last pass has one token
  (void)Evaluate(*scheduler, text);
  (void)Evaluate(*scheduler, SomeTokens(40, 90));
  ExpectExact(*scheduler, Joined(text, SomeTokens(30, 5)), 201);
}

TEST_P(RestoredDraftsTest, FromASnapshotAndItsState) {
  const auto engine = Open();
  const Tokens text = SomeTokens(64);
  Session session(*engine, SequenceId{0});
  ASSERT_TRUE(session.Append(text).ok());
  const Row last(session.LastState().begin(), session.LastState().end());
  const auto snapshot = engine->cache().snapshots()->TakeSnapshot(SequenceId{0}, 0, 64);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  const Tokens more = SomeTokens(20, 7);
  const Seen expected = AtOnce(Joined(text, more));
  Session other(*engine, SequenceId{1});
  ASSERT_TRUE(other.Restore(snapshot->get(), text, last).ok());
  ASSERT_TRUE(other.Append(more).ok());
  EXPECT_EQ(Look(*engine, other), expected);
  // The state matters: without it, zeros take its place in the head's keys and values.
  ASSERT_TRUE(other.GoBackTo(0).ok());
  ASSERT_TRUE(other.Restore(snapshot->get(), text).ok());
  EXPECT_TRUE(other.LastState().empty());
  ASSERT_TRUE(other.Append(more).ok());
  EXPECT_EQ(Look(*engine, other).head == expected.head, IsAssistant());
}

TEST_P(RestoredDraftsTest, FromAForkAndATruncation) {
  const auto engine = Open();
  const Tokens text = SomeTokens(90);
  Session session(*engine, SequenceId{0});
  ASSERT_TRUE(session.Append(text).ok());
  const Tokens more = SomeTokens(20, 7);
  {
    Session copy(*engine, SequenceId{1});
    ASSERT_TRUE(copy.ForkFrom(session, 90).ok());
    ASSERT_TRUE(copy.Append(more).ok());
    EXPECT_EQ(Look(*engine, copy), AtOnce(Joined(text, more)));
  }
  // Recurrent states go back to a checkpoint, behind which the state may be unknown.
  if (std::string(GetParam().architecture).starts_with("qwen3")) return;
  ASSERT_TRUE(session.Truncate(84).ok());
  const auto kept = std::span(text).first(84);
  EXPECT_EQ(Look(*engine, session), AtOnce(kept));
  ASSERT_TRUE(session.Append(more).ok());
  EXPECT_EQ(Look(*engine, session), AtOnce(Joined(kept, more)));
}

TEST_P(RestoredDraftsTest, FromStores) {
  const TestDirectory directory;
  const Tokens text = SomeTokens(600);
  for (const bool on_disk : {false, true}) {
    std::shared_ptr<Store> store = std::move(*MakeMemoryStore());
    if (on_disk) store = std::move(*OpenDiskStore({.directory = directory.path()}));
    {
      const auto engine = Open(store);
      EXPECT_EQ(Evaluate(*engine, text).reuse.stored, 0);
      EXPECT_EQ(engine->FlushStore(), "");
    }
    const auto engine = Open(store);
    const bool divisible = IsDivisible(engine->info().memory);
    // Each scheduler has prefixes of its own.
    const auto make = [&] { return std::move(*Scheduler::Make(*engine, {.one_at_a_time = true})); };
    ExpectExact(*make(), Joined(text, SomeTokens(40, 5)), divisible ? 592 : 600);
    // The end of a chunk is inside of a pass.
    ExpectExact(*make(), Joined(std::span(text).first(512), SomeTokens(40, 6)), 512);
  }
}

// Objects of engines without a head are the exported snapshots alone. Gemma 4's assistant shares objects with
// them, in both directions; another head's fingerprint is another one.
TEST_P(RestoredDraftsTest, StoresOfEnginesWithAndWithoutTheHead) {
  const Tokens text = SomeTokens(300);
  const Tokens longer = Joined(text, SomeTokens(10, 5));
  for (const bool head_writes : {false, true}) {
    const std::shared_ptr<Store> store = std::move(*MakeMemoryStore());
    const auto writer = Open(store, head_writes);
    (void)Evaluate(*writer, text);
    EXPECT_EQ(writer->FlushStore(), "");
    int states = 0;
    int with_last = 0;
    const auto objects = store->List();
    ASSERT_TRUE(objects.ok());
    for (const StoredObject& object : *objects) {
      const auto payload = ReadObject(*store, object.id);
      ASSERT_TRUE(payload.ok());
      const auto size = store::SnapshotSize(*payload);
      if (!size.ok()) continue;  // a list
      ++states;
      with_last += payload->size() > *size ? 1 : 0;
    }
    EXPECT_GT(states, 0);
    EXPECT_EQ(with_last > 0, head_writes);
    const auto reader = Open(store, !head_writes);
    const Evaluated found = Evaluate(*reader, longer);
    EXPECT_EQ(found.reuse.stored, IsAssistant() ? 300 : 0);
    if (IsAssistant()) {
      EXPECT_EQ(found.reuse.store_problem, "");
    }
    const auto all = Open();
    Session at_once(*all, SequenceId{0});
    ASSERT_TRUE(at_once.Append(longer).ok());
    const auto expected = *at_once.LastLogits();
    EXPECT_EQ(found.logits, Row(expected.begin(), expected.end()));
  }
}

// A request that continues from another one's text, and one in another process that finds it in a store.
TEST_P(RestoredDraftsTest, InAScheduler) {
  const std::shared_ptr<Store> store = std::move(*MakeMemoryStore());
  const Tokens prompt = SomeTokens(80);
  Tokens longer;
  for (const bool again : {false, true}) {
    const auto engine = Open(store);
    auto scheduler = *Scheduler::Make(*engine, {.use_engine_drafts = true});
    Row last;
    Bytes head;
    const auto ask = [&](const Tokens& text) {
      RequestResult result;
      bool is_first = true;
      ScheduledRequest request;
      request.prompt = text;
      request.max_tokens = 12;
      request.draft_tokens = 3;
      request.sampling.temperature = 0.0f;
      request.on_logits = [&](Position length, std::span<const float>) {
        if (!std::exchange(is_first, false)) return;
        const auto state = engine->states()->Last(SequenceId{0}, length);
        last.assign(state.begin(), state.end());
        head = HeadBytes(*engine, SequenceId{0}, length);
      };
      request.on_done = [&](const RequestResult& done) { result = done; };
      EXPECT_TRUE(scheduler->Submit(std::move(request)).ok());
      while (*scheduler->Step()) {
      }
      EXPECT_TRUE(result.status.ok()) << result.status.message();
      EXPECT_TRUE(result.speculation.error.ok()) << result.speculation.error.message();
      return result;
    };
    if (!again) {
      const RequestResult first = ask(prompt);
      ASSERT_EQ(first.tokens.size(), 12U);
      longer = Joined(Joined(prompt, first.tokens), SomeTokens(40, 5));
    }
    const RequestResult second = ask(longer);
    if (again) {
      EXPECT_GT(second.reuse.stored, 0);
    } else {
      EXPECT_EQ(second.reuse.restored, 91);
    }
    const Seen expected = AtOnce(longer);
    EXPECT_EQ(last, expected.last) << again;
    EXPECT_EQ(head, expected.head) << again;
    (void)engine->FlushStore();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RestoredDraftsTest,
                         ::testing::Values(Kind{"llama", "llama"}, Kind{"windows", "llama", 0, 24},
                                           Kind{"qwen3next", "qwen3next", 4},
                                           Kind{"bailingmoe2", "bailingmoe2", 4},
                                           Kind{"qwen35", "qwen35"},
                                           Kind{"qwen35moe", "qwen35moe", 4},
                                           Kind{"assistant", "gemma4"}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvcache::restored_drafts_test
