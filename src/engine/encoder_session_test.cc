// Sessions of models whose encoder reads a text first.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/request/score.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"

namespace kvcache::encoder_session_test {
namespace {

constexpr SequenceId kFirst{0}, kSecond{1};

class EncoderSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "encoder_session." + std::to_string(getpid()) + ".gguf";
    const Status status = make_model::MakeModel({.architecture = "t5", .seed = 5}, path_);
    ASSERT_TRUE(status.ok()) << status.message();
    auto engine = Engine::Open(path_, {.threads = 1, .context = 24, .max_sequences = 2});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }
  void TearDown() override {
    engine_.reset();
    std::filesystem::remove(path_);
  }

  std::vector<float> Logits(Session& session) {
    const auto logits = session.LastLogits();
    EXPECT_TRUE(logits.ok());
    return {logits->begin(), logits->end()};
  }

  const std::vector<std::int32_t> text_ = {5, 60, 7, 80, 9};
  const std::vector<std::int32_t> tokens_ = {300, 20, 31};
  std::string path_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EncoderSessionTest, NothingComesBeforeTheText) {
  Session session(*engine_, kFirst);
  EXPECT_EQ(session.Append(tokens_).message(),
            "the model has an encoder, which reads a text first: call Encode");
  ASSERT_TRUE(session.Encode(text_).ok());
  EXPECT_EQ(session.position(), 1);
  ASSERT_TRUE(session.Append(tokens_).ok());
  EXPECT_EQ(session.Encode(text_).message(),
            "the session holds 4 tokens; a text is encoded into an empty one");
  const std::vector<float> after = Logits(session);
  // From the start again, and from the first token.
  ASSERT_TRUE(session.Truncate(1).ok());
  ASSERT_TRUE(session.Append(tokens_).ok());
  EXPECT_EQ(Logits(session), after);
  ASSERT_TRUE(session.Truncate(0).ok());
  ASSERT_TRUE(session.Encode(text_).ok());
  ASSERT_TRUE(session.Append(tokens_).ok());
  EXPECT_EQ(Logits(session), after);
}

TEST_F(EncoderSessionTest, ForksSeeTheSameText) {
  Session session(*engine_, kFirst);
  ASSERT_TRUE(session.Encode(text_).ok());
  ASSERT_TRUE(session.Append(tokens_).ok());
  const std::vector<float> after = Logits(session);
  Session fork(*engine_, kSecond);
  ASSERT_TRUE(fork.ForkFrom(session, 2).ok());
  ASSERT_TRUE(fork.Append(std::span(tokens_).subspan(1)).ok());
  EXPECT_EQ(Logits(fork), after);
}

TEST_F(EncoderSessionTest, WhatCannotBeReadLeavesTheSessionEmpty) {
  Session session(*engine_, kFirst);
  EXPECT_EQ(session.Encode(std::vector<std::int32_t>(25, 3)).message(),
            "25 tokens do not fit into the context of 24");
  EXPECT_EQ(session.Encode({}).message(), "the text to encode has no tokens");
  EXPECT_EQ(session.Encode(std::vector<std::int32_t>{3, 512}).message(),
            "token 512 is not in the vocabulary of 512");
  EXPECT_EQ(session.position(), 0);
  EXPECT_TRUE(session.Encode(text_).ok());
}

TEST_F(EncoderSessionTest, ScoresBeginWithTheFirstToken) {
  Session session(*engine_, kFirst);
  ASSERT_TRUE(session.Encode(text_).ok());
  std::vector<float> rows;
  const LogitsSink sink = [&](std::span<const float> some) {
    rows.insert(rows.end(), some.begin(), some.end());
    return Status::Ok();
  };
  const auto score = Score(session, *engine_, tokens_, sink);
  ASSERT_TRUE(score.ok()) << score.status().message();
  EXPECT_EQ(score->tokens, 4);
  EXPECT_EQ(rows.size(), 4u * 512u);
  EXPECT_GT(score->nll, 0.0);
}

TEST_F(EncoderSessionTest, AFullContextIsTheEnd) {
  GenerateRequest request;
  request.prompt = text_;
  request.sampling.temperature = 0.0f;
  const auto until_full = Generate(**Scheduler::Make(*engine_, {}), request);
  ASSERT_TRUE(until_full.ok()) << until_full.status().message();
  EXPECT_LE(until_full->evaluated, 24);
  Session session(*engine_, kFirst);
  EXPECT_EQ(session.Shift(1).status().message(),
            "the context of 24 tokens is full, and a model with an encoder cannot remove tokens");
}

}  // namespace
}  // namespace kvcache::encoder_session_test
