// The engine on a small random model: errors that leave things as they were, forks, shifts. That logits are right is tests/oracle's; that they are exact, tests/exactness's.
#include "engine/engine_impl.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/request/score.h"
#include "gguf/gguf_writer.h"
#include "kvcache/cpu_backend.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"
#include "support/failing_backend.h"

namespace kvcache::engine_test {
namespace {

std::vector<std::int32_t> SomeTokens(int count, std::int32_t first = 3) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + (i * 37) % 250);
  return tokens;
}

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Tests run as processes side by side: each its own file.
    path_ =
        new std::string(::testing::TempDir() + "engine_test." + std::to_string(getpid()) + ".gguf");
    const Status status = WriteTestModel(*path_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static void TearDownTestSuite() {
    std::filesystem::remove(*path_);
    delete path_;
  }

  static Status WriteTestModel(const std::string& path);

  static std::unique_ptr<Engine> Open(EngineOptions options = {}) {
    auto engine = Engine::Open(*path_, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  static std::vector<float> LogitsAfter(Session& session) {
    const auto logits = session.LastLogits();
    EXPECT_TRUE(logits.ok());
    return {logits->begin(), logits->end()};
  }

  static std::string* path_;
};

std::string* EngineTest::path_ = nullptr;

Status EngineTest::WriteTestModel(const std::string& path) {
  return make_model::MakeModel({.type = DType::kF16, .seed = 11}, path);
}

TEST_F(EngineTest, OptionsOutOfRangeAreNamed) {
  const auto fails = [](EngineOptions options, const std::string& word) {
    const auto engine = Engine::Open(*path_, options);
    ASSERT_FALSE(engine.ok());
    EXPECT_NE(engine.status().message().find(word), std::string::npos) << engine.status().message();
  };
  fails({.context = -1}, "context");
  fails({.prefill_chunk = 0}, "prefill chunk");
  fails({.max_sequences = 0}, "sequences");
  fails({.context = 1 << 28, .max_sequences = 16},
        "max_sequences 16 x capacity 268435456 are more");
  fails({.k_type = DType::kQ5_0}, "q5_0");
  fails({.pool_bytes = -1}, "pool has -1 bytes");
}

TEST_F(EngineTest, APoolThatReleasesMemoryIsMadeForBytes) {
  const auto pool = [](std::int64_t bytes) {
    return Open({.context = 64, .releases_memory = true, .pool_bytes = bytes});
  };
  const auto engine = pool(std::int64_t{8} << 20);
  const EngineOptions& options = engine->options();
  const std::int64_t token = BytesPerToken(engine->info().memory, options.k_type, options.v_type);
  EXPECT_EQ(options.pool_tokens, (std::int64_t{8} << 20) / token);
  EXPECT_GE(engine->cache().memory()->FreeCells(), options.pool_tokens);
  EXPECT_EQ(pool(1)->options().pool_tokens, 64);
  EXPECT_GT(pool(0)->options().pool_tokens, 64);
  EXPECT_EQ(Open({.context = 64, .pool_bytes = 1 << 20})->options().pool_tokens, 0);
}

// The test's model with the first `count` tokens of its vocabulary.
Status WriteWithTokens(const std::string& from, std::size_t count, const std::string& to) {
  KVCACHE_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(from));
  GgufHeader header;
  for (const GgufEntry& entry : file->entries()) {
    if (!entry.key.starts_with("tokenizer.ggml.")) header.SetEntry(entry);
  }
  KVCACHE_ASSIGN_OR_RETURN(const GgufStrings all, file->GetStrings("tokenizer.ggml.tokens"));
  std::vector<std::string> tokens;
  for (const std::string_view token : all) {
    if (tokens.size() < count) tokens.emplace_back(token);
  }
  header.SetString("tokenizer.ggml.model", "llama");
  header.SetStrings("tokenizer.ggml.tokens", tokens);
  for (const GgufTensor& tensor : file->tensors()) {
    header.AddTensor(tensor.name, tensor.type->type,
                     std::span(tensor.dims.data(), static_cast<std::size_t>(tensor.rank)));
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto writer, GgufWriter::Create(to, std::move(header)));
  for (std::size_t i = 0; i < file->tensors().size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(writer->Write(i, 0, file->tensors()[i].bytes));
  }
  return writer->Finish();
}

TEST_F(EngineTest, RefusesAVocabularyOfAnotherSize) {
  const std::string path = *path_ + ".cut";
  const Status written = WriteWithTokens(*path_, 5, path);
  ASSERT_TRUE(written.ok()) << written.message();
  const auto engine = Engine::Open(path, {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(engine.status().message(), path + ": the vocabulary has 5 tokens, but the output has " +
                                           std::to_string(Open()->info().vocabulary) +
                                           " rows; there must be one row for each token");
  std::filesystem::remove(path);
}

TEST_F(EngineTest, MemoryThatCannotGoBackIsStillCounted) {
  auto backend = std::make_unique<testing::FailingBackend>(*MakeCpuBackend({.threads = 1}));
  testing::FailingBackend& failing = *backend;
  auto engine = *Engine::Open(*path_, {.context = 64, .pool_tokens = 2048, .releases_memory = true},
                              std::move(backend));
  Cache& cache = engine->cache();
  const std::int64_t empty = cache.memory()->ResidentBytes();
  Session session(*engine, SequenceId{0});
  ASSERT_TRUE(session.Append(SomeTokens(60)).ok());
  ASSERT_TRUE(session.Truncate(0).ok());
  const std::int64_t full = cache.memory()->ResidentBytes();
  EXPECT_GT(full, empty);
  failing.FailNth(1);
  EXPECT_EQ(cache.memory()->ReleaseFreeMemory().message(), testing::FailingBackend::kMessage);
  EXPECT_EQ(cache.memory()->ResidentBytes(), full);
  EXPECT_TRUE(cache.memory()->ReleaseFreeMemory().ok());
  EXPECT_EQ(cache.memory()->ResidentBytes(), empty);
}

TEST_F(EngineTest, ContextOverflowChangesNothing) {
  const auto engine = Open({.context = 16});
  Session session(*engine, SequenceId{0});
  ASSERT_TRUE(session.Append(SomeTokens(10)).ok());
  const Status status = session.Append(SomeTokens(7));
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(status.message(), "17 tokens do not fit into the context of 16");
  EXPECT_EQ(session.position(), 10);
  EXPECT_TRUE(session.Append(SomeTokens(6)).ok());
}

TEST_F(EngineTest, TokenOutsideTheVocabularyIsNamedAndUndone) {
  const auto engine = Open({.context = 64, .prefill_chunk = 4});
  Session session(*engine, SequenceId{0});
  std::vector<std::int32_t> tokens = SomeTokens(6);
  tokens.push_back(1 << 20);
  const Status status = session.Append(tokens);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("1048576"), std::string::npos) << status.message();
  EXPECT_EQ(session.position(), 4) << "the first pass stays, the failing one is undone";
  EXPECT_TRUE(session.Append(SomeTokens(3)).ok());
}

TEST_F(EngineTest, ForkSharesAndGivesTheSameBits) {
  const auto engine = Open({.context = 64, .max_sequences = 2});
  Session first(*engine, SequenceId{0});
  Session second(*engine, SequenceId{1});
  ASSERT_TRUE(first.Append(SomeTokens(20)).ok());
  ASSERT_TRUE(second.ForkFrom(first, 12).ok());
  EXPECT_EQ(second.position(), 12);
  const auto tail = std::vector<std::int32_t>(first.tokens().begin() + 12, first.tokens().end());
  const std::vector<float> expected = LogitsAfter(first);
  ASSERT_TRUE(second.Append(tail).ok());
  EXPECT_EQ(LogitsAfter(second), expected);
  EXPECT_FALSE(second.ForkFrom(first, 21).ok());
}

TEST_F(EngineTest, TruncateAndContinueAnotherWay) {
  const auto engine = Open({.context = 64});
  Session session(*engine, SequenceId{0});
  ASSERT_TRUE(session.Append(SomeTokens(20)).ok());
  const std::vector<float> expected = LogitsAfter(session);
  ASSERT_TRUE(session.Append(SomeTokens(9, 40)).ok());
  ASSERT_TRUE(session.Truncate(19).ok());
  ASSERT_TRUE(session.Append(std::vector{SomeTokens(20).back()}).ok());
  EXPECT_EQ(LogitsAfter(session), expected);
}

TEST_F(EngineTest, AShiftThatBreaksOffLeavesAnEmptySession) {
  auto backend = std::make_unique<testing::FailingBackend>(MakeCpuBackend({}).value());
  testing::FailingBackend& failing = *backend;
  auto opened = Engine::Open(*path_, {.context = 64}, std::move(backend));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Engine& engine = **opened;
  const std::vector<std::int32_t> tokens = SomeTokens(20);
  Session session(engine, SequenceId{0});
  ASSERT_TRUE(session.Append(tokens).ok());
  const std::vector<float> expected = LogitsAfter(session);

  failing.FailNth(2);  // the keys of the second layer
  const auto dropped = session.Shift(2);
  ASSERT_FALSE(dropped.ok());
  EXPECT_EQ(dropped.status().message(), testing::FailingBackend::kMessage);
  EXPECT_FALSE(failing.failure_pending());
  EXPECT_EQ(session.position(), 0);
  ASSERT_TRUE(session.Append(tokens).ok()) << "nothing of it is left in the cache";
  EXPECT_EQ(LogitsAfter(session), expected);
}

TEST_F(EngineTest, ShiftDropsHalfAfterWhatStays) {
  const auto engine = Open({.context = 32});
  Session session(*engine, SequenceId{0});
  const auto tokens = SomeTokens(32);
  ASSERT_TRUE(session.Append(tokens).ok());
  const auto dropped = session.Shift(2);
  ASSERT_TRUE(dropped.ok()) << dropped.status().message();
  EXPECT_EQ(*dropped, 15);
  std::vector<std::int32_t> expected(tokens.begin(), tokens.begin() + 2);
  expected.insert(expected.end(), tokens.begin() + 17, tokens.end());
  EXPECT_EQ(std::vector<std::int32_t>(session.tokens().begin(), session.tokens().end()), expected);
  EXPECT_TRUE(session.Append(SomeTokens(15)).ok());
  EXPECT_FALSE(session.Shift(32).ok()) << "nothing to drop";
}

TEST_F(EngineTest, AContinuationHasNoBeginOfSequenceToken) {
  const auto engine = Open({.context = 64});
  const auto whole = engine->Tokenize("one two");
  const auto more = engine->Tokenize("one two", TextPlace::kContinuation);
  ASSERT_TRUE(whole.ok() && more.ok());
  ASSERT_GE(whole->size(), 2u);
  EXPECT_EQ(whole->front(), engine->tokenizer().bos());
  EXPECT_EQ(*more, std::vector<std::int32_t>(whole->begin() + 1, whole->end()));
}

TEST_F(EngineTest, LogitsThatAreNotNumbersAreAnError) {
  const std::string path = ::testing::TempDir() + "engine_test_nan.gguf";
  std::filesystem::copy_file(*path_, path, std::filesystem::copy_options::overwrite_existing);
  {
    const auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok());
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>((*file)->FindTensor("output_norm.weight")->offset));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    bytes.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  }
  auto engine = Engine::Open(path, {.context = 64});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto result =
      Generate(**Scheduler::Make(**engine, {}), {.prompt = SomeTokens(10), .max_tokens = 5});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(result.status().message(), path +
                                           ": after 10 tokens the logit of token 0 is not a "
                                           "number: the model's weights are damaged");
  Session session(**engine, SequenceId{0});
  EXPECT_EQ(Score(session, **engine, SomeTokens(3)).status().message(),
            path +
                ": after 1 token the logit of token 0 is not a number: the model's weights are "
                "damaged");
  std::filesystem::remove(path);
}

TEST_F(EngineTest, ScoreAddsUpWhatTheSinkSees) {
  const auto engine = Open({.context = 64, .prefill_chunk = 7});
  Session session(*engine, SequenceId{0});
  const auto tokens = SomeTokens(40);
  std::vector<float> rows;
  const auto score = Score(session, *engine, tokens, [&](std::span<const float> some) {
    rows.insert(rows.end(), some.begin(), some.end());
    return Status::Ok();
  });
  ASSERT_TRUE(score.ok()) << score.status().message();
  const auto vocabulary = static_cast<std::size_t>(engine->info().vocabulary);
  ASSERT_EQ(rows.size(), tokens.size() * vocabulary);
  double nll = 0.0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    double sum = 0.0;
    for (std::size_t t = 0; t < vocabulary; ++t) sum += std::exp(double{rows[i * vocabulary + t]});
    nll += std::log(sum) - rows[i * vocabulary + static_cast<std::size_t>(tokens[i + 1])];
  }
  EXPECT_NEAR(score->nll, nll, 1e-6 * nll);
  EXPECT_NEAR(score->perplexity, std::exp(nll / 39), 1e-6 * score->perplexity);
}

}  // namespace
}  // namespace kvcache::engine_test
