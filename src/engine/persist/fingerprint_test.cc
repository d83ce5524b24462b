// Tests that a change of any part of the fingerprint is a miss, and that the miss names the part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/persist/fingerprint_list.h"
#include "engine/persist/prefix_store.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/scheduler.h"
#include "make_model/make_model.h"

namespace kvcache::fingerprint_test {
namespace {

using make_model::Request;
using ::testing::HasSubstr;

constexpr const char* kFile = "the model's file (weights, tokenizer or settings)";
constexpr const char* kTypes = "the types of keys and values";
constexpr const char* kHead = "the draft head";

class FingerprintTest : public ::testing::Test {
 protected:
  static Request Base() {
    Request request{.threads = 1};
    request.shape.vocab = 700;
    request.shape.context = 512;
    request.shape.window = 128;
    request.shape.window_pattern = 2;
    request.shape.family.nextn_layers = 1;
    return request;
  }

  std::string Write(const Request& request) {
    std::string path = StrCat(::testing::TempDir(), "fingerprint", ++files_, ".gguf");
    const Status status = make_model::MakeModel(request, path);
    EXPECT_TRUE(status.ok()) << status.message();
    return path;
  }

  static std::vector<std::int32_t> Prompt() {
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 200; ++i) tokens.push_back(3 + i * 37 % 600);
    return tokens;
  }

  struct Outcome {
    Position stored = 0;
    std::string problem;
  };
  // Evaluates the prompt as another process would: what the store has, and why not.
  Outcome Evaluate(const std::string& path, EngineOptions options) {
    options.threads = 1;
    options.context = 512;
    auto engine = Engine::Open(path, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return {};
    EXPECT_TRUE((*engine)->UseStore(store_).ok());
    auto scheduler = Scheduler::Make(**engine, {.one_at_a_time = true});
    EXPECT_TRUE(scheduler.ok()) << scheduler.status().message();
    const auto result = Generate(**scheduler, {.prompt = Prompt(), .max_tokens = 0});
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ((*engine)->FlushStore(), "");
    return {result->reuse.stored, result->reuse.store_problem};
  }

  const std::shared_ptr<Store> store_ = std::move(*MakeMemoryStore());
  int files_ = 0;
};

TEST_F(FingerprintTest, EachPartIsAMissWithItsName) {
  const std::string base = Write(Base());
  EXPECT_EQ(Evaluate(base, {}).stored, 0);
  ASSERT_GT(Evaluate(base, {}).stored, 100);

  struct Change {
    const char* name;
    const char* part;
    Request request = Base();
    EngineOptions options{};
  };
  std::vector<Change> changes = {{"weights", kFile},   {"tokenizer", kFile},   {"rope", kFile},
                                 {"window", kFile},    {"pattern", kFile},     {"heads", kFile},
                                 {"key type", kTypes}, {"value type", kTypes}, {"draft", kHead}};
  changes[0].request.seed = 2;
  changes[1].request.control_tokens = {"<|other|>"};
  changes[2].request.shape.rope_base = 20000.0f;
  changes[3].request.shape.window = 64;
  changes[4].request.shape.window_pattern = 0;
  changes[5].request.shape.kv_heads = changes[5].request.shape.heads;
  changes[6].options.k_type = DType::kF32;
  changes[7].options.v_type = DType::kQ8_0;
  changes[8].options.draft_head = base;
  for (const Change& change : changes) {
    SCOPED_TRACE(change.name);
    const bool same_file = change.part != kFile;
    const Outcome outcome = Evaluate(same_file ? base : Write(change.request), change.options);
    EXPECT_EQ(outcome.stored, 0);
    EXPECT_THAT(outcome.problem, HasSubstr("under another fingerprint"));
    EXPECT_THAT(outcome.problem, HasSubstr(change.part));
  }
  EXPECT_GT(Evaluate(base, {}).stored, 100) << "the first one is still there";
}

// Parts that one machine and one build cannot change.
TEST_F(FingerprintTest, DifferencesNameTheParts) {
  const std::string text =
      "kvcache states, version 1\nmodel 12\narchitecture llama\nK f16, V f16\n"
      "multiply-add fused, arithmetic 2\nlayer 0 full, heads 2 of 16 and 16, window 0\n"
      "rotated by pairs\n";
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    EXPECT_EQ(FingerprintDifference(text, other), FingerprintDifference(other, text));
    return FingerprintDifference(text, other);
  };
  EXPECT_EQ(FingerprintDifference(text, text), "");
  EXPECT_EQ(changed("version 1", "version 2"), "the format");
  EXPECT_EQ(changed("architecture llama", "architecture qwen3"), "the architecture");
  EXPECT_EQ(changed("fused", "rounded twice"), "the processor or the version of the arithmetic");
  EXPECT_EQ(changed("arithmetic 2", "arithmetic 3"),
            "the processor or the version of the arithmetic");
  EXPECT_EQ(changed("window 0", "window 64"), "a layer's window or shape");
  EXPECT_EQ(changed("by pairs", "by halves"), "RoPE or the layout of keys");
  EXPECT_EQ(changed("2\nlayer 0", "2\nlayer 7, draft head \nlayer 0"), "the draft head");
}

}  // namespace
}  // namespace kvcache::fingerprint_test
