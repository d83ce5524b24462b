// Tests Chat with a small random model: the tokens that are kept and computed, and that both ways
// give the same bits.
#include "kvcache_engine/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "dialect/model_dialect.h"
#include "engine/engine_impl.h"
#include "make_model/make_model.h"

namespace kvcache::chat_test {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{{ m.content[:cut] if m.role == 'assistant' and cut is defined and not loop.last "
    "else m.content }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}";

class ChatTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = new std::string(::testing::TempDir() + "chat_test.gguf");
    const Status status = make_model::MakeModel({.shape = {.vocab = 700, .context = 512},
                                                 .threads = 1,
                                                 .chat_template = kTemplate,
                                                 .control_tokens = {"<|im_start|>", "<|im_end|>"}},
                                                *path_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static void TearDownTestSuite() {
    std::filesystem::remove(*path_);
    delete path_;
  }

  ChatTest() : engine_(std::move(Engine::Open(*path_, {.threads = 1})).value()) {}

  ModelDialect Dialect() const {
    return std::move(ModelDialect::Make(
                         [&](ToolUse tools) {
                           return ChatFormat::ForModel(engine_->file(), engine_->tokenizer(),
                                                       tools);
                         },
                         engine_->tokenizer()))
        .value();
  }

  static void Say(Chat& chat, std::string text) {
    chat.input().messages.push_back({{"role", "user"}, {"content", std::move(text)}});
  }

  static GenerateRequest Ask(std::int32_t tokens) {
    GenerateRequest request;
    request.max_tokens = tokens;
    request.sampling.seed = 7;
    return request;
  }

  static ChatTurn Answer(Chat& chat, std::int32_t tokens = 12) {
    auto turn = chat.Answer(Ask(tokens));
    EXPECT_TRUE(turn.ok()) << turn.status().message();
    return std::move(turn).value();
  }

  static std::int32_t Kept(const ChatTurn& turn) { return turn.result.reuse.restored; }

  static std::string* path_;
  std::unique_ptr<Engine> engine_;
};

std::string* ChatTest::path_ = nullptr;

TEST_F(ChatTest, EachTurnComputesOnlyWhatIsNew) {
  Chat chat(*engine_, Dialect());
  std::int32_t held = 0;
  for (int turn = 0; turn < 6; ++turn) {
    Say(chat, "message " + std::to_string(turn));
    const ChatTurn answer = Answer(chat);
    EXPECT_EQ(Kept(answer), held) << turn;
    EXPECT_EQ(Kept(answer) + answer.result.computed_tokens, answer.result.prompt_tokens);
    EXPECT_EQ(answer.dropped, 0) << turn;
    EXPECT_EQ(answer.rewrite, Rewrite::kNone);
    held = answer.result.evaluated;
  }
}

TEST_F(ChatTest, KeptHistoryGivesTheSameBits) {
  struct Said {
    ChatTurn turn;
    std::vector<float> logits;  // of all drawn tokens
  };
  const auto answer = [](Chat& chat) {
    Said said;
    GenerateRequest request = Ask(12);
    request.on_logits = [&](Position, std::span<const float> logits) {
      said.logits.insert(said.logits.end(), logits.begin(), logits.end());
    };
    auto turn = chat.Answer(std::move(request));
    EXPECT_TRUE(turn.ok());
    said.turn = std::move(turn).value();
    return said;
  };
  Chat chat(*engine_, Dialect());
  Said warm;
  for (const char* text : {"one", "two", "three"}) {
    Say(chat, text);
    warm = answer(chat);
    // The text of an answer may have other tokens than the answer: the next prompt has these.
    chat.input().messages.back()["content"] = std::string("an answer to ") + text;
  }
  EXPECT_GT(Kept(warm.turn), 20);
  // A new chat with the same messages computes all of them.
  const auto engine = std::move(Engine::Open(*path_, {.threads = 1})).value();
  Chat other(*engine, Dialect());
  other.input().messages = chat.input().messages;
  other.input().messages.erase(other.input().messages.size() - 1);
  const Said cold = answer(other);
  EXPECT_EQ(Kept(cold.turn), 0);
  EXPECT_EQ(cold.turn.result.tokens, warm.turn.result.tokens);
  EXPECT_EQ(cold.logits, warm.logits);
}

TEST_F(ChatTest, RewrittenTextCostsWhatComesAfterIt) {
  Chat chat(*engine_, Dialect());
  chat.input().variables["cut"] = 1;
  Say(chat, "one");
  const ChatTurn first = Answer(chat);
  ASSERT_GT(first.result.text.size(), 2u);
  Say(chat, "two");
  const ChatTurn second = Answer(chat);
  EXPECT_EQ(second.rewrite, Rewrite::kByTemplate);
  EXPECT_GE(Kept(second), first.result.prompt_tokens - 1);
  EXPECT_GT(second.dropped, 0);
  EXPECT_EQ(Kept(second) + second.result.computed_tokens, second.result.prompt_tokens);
}

TEST_F(ChatTest, ChangedMessagesKeepTheCommonPrefix) {
  Chat chat(*engine_, Dialect());
  Say(chat, "one");
  const ChatTurn first = Answer(chat);
  chat.input().messages.erase(1);  // the answer, to be given again
  const ChatTurn again = Answer(chat);
  EXPECT_EQ(again.rewrite, Rewrite::kByCaller);
  EXPECT_EQ(Kept(again), first.result.prompt_tokens - 1);
  EXPECT_EQ(again.result.tokens, first.result.tokens);
  EXPECT_EQ(chat.input().messages.size(), 2u);
}

TEST_F(ChatTest, FailuresChangeNothing) {
  Chat chat(*engine_, Dialect());
  Say(chat, "one");
  const Position held = Answer(chat).result.evaluated;
  const auto before = chat.input().messages;
  Say(chat, std::string(3000, 'x'));
  const auto full = chat.Answer(Ask(4));
  EXPECT_EQ(full.status().code(), StatusCode::kCacheFull);
  EXPECT_THAT(full.status().message(), ::testing::HasSubstr("the context holds 512"));
  chat.input().messages = before;
  Say(chat, "two");
  EXPECT_EQ(Kept(Answer(chat)), held);
}

TEST_F(ChatTest, InterruptedBeforeTheFirstTokenAddsNothing) {
  Chat chat(*engine_, Dialect());
  Say(chat, "one");
  const std::atomic<bool> interrupted{true};
  GenerateRequest request = Ask(4);
  request.interrupt = &interrupted;
  const auto turn = chat.Answer(std::move(request));
  ASSERT_TRUE(turn.ok());
  EXPECT_EQ(turn->result.stop, StopReason::kInterrupted);
  EXPECT_EQ(chat.input().messages.size(), 1u);
}

// The public way: no type of the engine's sources.
TEST_F(ChatTest, OpensWithTheModelsTemplateOrAGivenOne) {
  const auto messages = R"([{"role": "user", "content": "one"}])";
  std::int32_t prompt_tokens[2] = {};
  for (const std::string source : {"", "{% for m in messages %}{{ m.content }}{% endfor %}"}) {
    const auto chat = Chat::Open(*engine_, {.template_source = source});
    ASSERT_TRUE(chat.ok()) << chat.status().message();
    ASSERT_TRUE((*chat)->conversation().ReadJson(messages).ok());
    const auto turn = (*chat)->Answer(Ask(4));
    ASSERT_TRUE(turn.ok()) << turn.status().message();
    EXPECT_EQ((*chat)->conversation().size(), 2u);
    EXPECT_TRUE((*chat)->conversation().HasRole(1, "assistant"));
    prompt_tokens[source.empty() ? 0 : 1] = turn->result.prompt_tokens;
  }
  EXPECT_GT(prompt_tokens[0], prompt_tokens[1]);
  EXPECT_THAT(Chat::Open(*engine_, {.template_source = "{% for %}"}).status().message(),
              ::testing::HasSubstr("the given template: line 1"));
}

TEST_F(ChatTest, TheContextNeverShifts) {
  Chat chat(*engine_, Dialect());
  Say(chat, "one");
  GenerateRequest request = Ask(100000);
  request.sampling.temperature = 0.0f;
  const auto turn = chat.Answer(std::move(request));
  ASSERT_TRUE(turn.ok());
  EXPECT_EQ(turn->result.shifts, 0);
  EXPECT_LE(turn->result.evaluated, engine_->context());
  EXPECT_EQ(turn->context_full, turn->result.stop == StopReason::kLength);
}

TEST_F(ChatTest, WhatFollowsAStopStringIsNotHistory) {
  Chat chat(*engine_, Dialect());
  Say(chat, "one");
  const ChatTurn whole = Answer(chat, 20);
  ASSERT_GT(whole.result.text.size(), 8u);
  chat.input().messages.erase(1);
  GenerateRequest request = Ask(20);
  request.stop = {whole.result.text.substr(4, 2)};
  const auto cut = chat.Answer(std::move(request));
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->result.stop, StopReason::kStopString);
  Say(chat, "two");
  const ChatTurn next = Answer(chat);
  EXPECT_EQ(Kept(next) + next.result.computed_tokens, next.result.prompt_tokens);
  // The prompt has the tokens of the messages, and none of the stop string: a new chat has the same.
  chat.input().messages.erase(chat.input().messages.size() - 1);
  const auto prompt = chat.format().Write(chat.input());
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(std::ssize(prompt->marked.tokens), next.result.prompt_tokens);
  const auto text = engine_->tokenizer().Decode(prompt->marked.tokens, {ControlText::kShown});
  EXPECT_THAT(*text, ::testing::HasSubstr(cut->result.text + "<|im_end|>"));
  const auto cold = std::move(Engine::Open(*path_, {.threads = 1})).value();
  Chat other(*cold, Dialect());
  other.input().messages = chat.input().messages;
  const ChatTurn again = Answer(other);
  EXPECT_EQ(again.result.prompt_tokens, next.result.prompt_tokens);
  EXPECT_EQ(again.result.tokens, next.result.tokens);
}

}  // namespace
}  // namespace kvcache::chat_test
