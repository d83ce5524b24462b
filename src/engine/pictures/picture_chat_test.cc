// Chats with pictures, from files and a projector file of random weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chat_template/chat_format.h"
#include "engine/engine_impl.h"
#include "engine/pictures/file_tower.h"
#include "engine/pictures/picture_rows.h"
#include "kvcache/cpu_backend.h"
#include "kvcache_engine/chat.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"
#include "support/pictures/picture_model.h"

namespace kvcache {
namespace {

using picture_test::BmpOf;
using picture_test::Gemma3Family;
using picture_test::MakePictureModel;
using picture_test::PictureFamily;
using picture_test::PixtralFamily;
using picture_test::Qwen25VlFamily;
using ::testing::HasSubstr;

class PictureChatTest : public ::testing::TestWithParam<PictureFamily> {
 protected:
  void SetUp() override {
    const std::string name = ::testing::TempDir() + "picture_chat." + std::to_string(getpid());
    model_ = name + ".gguf";
    tower_ = name + ".mmproj.gguf";
    MakePictureModel(model_, tower_, GetParam());
    engine_ = Open();
    const Status status = engine_->UseTower(tower_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void TearDown() override {
    std::filesystem::remove(model_);
    std::filesystem::remove(tower_);
  }
  std::unique_ptr<Engine> Open() {
    auto engine = Engine::Open(model_, {.threads = 1});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  PicturePtr PictureOf(int width, int height, int color) {
    const std::string file = BmpOf(width, height, color);
    auto picture = engine_->PreparePicture(std::as_bytes(std::span(file)), "picture 1");
    EXPECT_TRUE(picture.ok()) << picture.status().message();
    return std::move(picture).value();
  }
  static GenerateRequest Short() {
    GenerateRequest request;
    request.max_tokens = 5;
    return request;
  }
  std::int32_t TokenOf(std::string_view text) {
    const auto tokens = engine_->tokenizer().Encode(
        text, {.add_bos = AddToken::kNo, .special = SpecialText::kParse});
    EXPECT_EQ(tokens->size(), 1U) << text;
    return tokens->front();
  }

  std::string model_, tower_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(PictureChatTest, AConversationKeepsItsPicture) {
  auto chat = std::move(Chat::Open(*engine_)).value();
  const PicturePtr picture = PictureOf(50, 40, 0x4080c0);
  EXPECT_EQ(picture->cells(), GetParam().cells);
  EXPECT_EQ(picture->shape().is_whole, GetParam().is_whole);
  chat->conversation().Add("user", "What is this?", {picture});
  const auto first = chat->Answer(Short());
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->result.reuse.pictures, 1);
  EXPECT_EQ(first->result.reuse.tower_runs, 1);
  EXPECT_EQ(engine_->pictures()->runs(), 1);
  chat->conversation().Add("user", "And more?");
  const auto second = chat->Answer(Short());
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second->result.reuse.pictures, 1);
  EXPECT_EQ(second->result.reuse.tower_runs, 0);
  EXPECT_GT(second->result.reuse.restored, first->result.prompt_tokens);
  // Another picture in its place.
  chat->conversation().Remove(0, chat->conversation().size());
  chat->conversation().Add("user", "What is this?", {PictureOf(50, 40, 0x402010)});
  const auto other = chat->Answer(Short());
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->result.reuse.tower_runs, 1);
  ASSERT_FALSE(other->result.reuse.missed.empty());
  EXPECT_EQ(other->result.reuse.missed.back().reason, MissReason::kOtherPicture);
  EXPECT_EQ(other->result.prompt_tokens, first->result.prompt_tokens);
  // The first one is still known.
  chat->conversation().Remove(0, chat->conversation().size());
  chat->conversation().Add("user", "What is this?", {picture});
  const auto again = chat->Answer(Short());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->result.reuse.tower_runs, 0);
  EXPECT_EQ(again->result.reuse.computed, 1);
  EXPECT_EQ(again->result.tokens, first->result.tokens);
}

TEST_P(PictureChatTest, PromptsHaveTheMarksOfTheProcessor) {
  const PictureFamily& family = GetParam();
  const std::string typed = "a " + family.mark + family.last_token + " b";
  ChatInput input;
  const PicturePtr picture = PictureOf(50, 40, 0x4080c0);
  input.messages = {{{"role", "user"},
                     {"content",
                      {{{"type", "text"}, {"text", typed}},
                       {{"type", "image"}, {"picture", picture->name()}},
                       {{"type", "text"}, {"text", "c"}}}}}};
  input.pictures = {picture};
  input.picture_marks = engine_->pictures()->tower().marks();
  const auto format = ChatFormat::ForModel(engine_->file(), engine_->tokenizer(), ToolUse::kNone);
  const auto prompt = format->Write(input);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  EXPECT_THAT(prompt->text, HasSubstr(family.open + "user\n" + typed + family.before +
                                      picture->name() + family.after + "c" + family.close));
  ASSERT_EQ(prompt->pictures.size(), 1U);
  const auto begin = static_cast<std::size_t>(prompt->pictures[0].begin);
  const auto cells = static_cast<std::size_t>(family.cells);
  const std::span<const std::int32_t> tokens(prompt->marked.tokens);
  EXPECT_TRUE(std::ranges::equal(tokens.subspan(begin, cells), picture->ids()));
  EXPECT_EQ(tokens[begin + cells], TokenOf(family.last_token));
  EXPECT_EQ(std::ranges::count(tokens, TokenOf(family.last_token)), 1);  // typed text is text
  if (!family.first_token.empty()) {
    EXPECT_EQ(tokens[begin - 1], TokenOf(family.first_token));
    EXPECT_EQ(std::ranges::count(tokens, TokenOf(family.first_token)), 1);
  }
  for (const TokenAnchor& anchor : prompt->marked.anchors) {
    if (tokens[anchor.index] == TokenOf(family.close)) {
      EXPECT_TRUE(prompt->text.substr(anchor.byte).starts_with(family.close));
    }
    if (tokens[anchor.index] == TokenOf(family.last_token)) {
      EXPECT_TRUE(prompt->text.substr(anchor.byte).starts_with(family.last_token));
    }
  }
  input.pictures.push_back(picture);
  EXPECT_THAT(std::string(format->Write(input).status().message()), HasSubstr("2 pictures"));
}

TEST_P(PictureChatTest, FilesThatAreNoPicturesAndModelsWithoutTowersAreRefused) {
  const std::string text = "no picture";
  EXPECT_EQ(engine_->PreparePicture(std::as_bytes(std::span(text)), "picture 1").status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(engine_->UseTower(tower_).code(), StatusCode::kInvalidArgument);
  const auto other = Open();
  EXPECT_EQ(other->CheckTakesPictures().code(), StatusCode::kUnsupported);
  EXPECT_EQ(other->UseTower(model_).ok(), false);
  auto chat = std::move(Chat::Open(*other)).value();
  chat->conversation().Add("user", "What is this?", {PictureOf(50, 40, 0x4080c0)});
  EXPECT_EQ(chat->Answer(Short()).status().code(), StatusCode::kUnsupported);
}

// Its name, and so the keys of its cells, are those of the other tower's rows.
TEST_P(PictureChatTest, PicturesOfAnotherTowerAreRefused) {
  const std::string path = tower_ + ".other";
  picture_test::MakeTower(path, GetParam(), 2);
  const auto other = Open();
  const Status used = other->UseTower(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(used.ok()) << used.message();
  const PicturePtr picture = PictureOf(50, 40, 0x4080c0);
  Session session(*other, SequenceId{0});
  EXPECT_EQ(session.AppendPicture(picture).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session.position(), 0);
  PicturePrompt prompt;
  ASSERT_TRUE(engine_->AddPicture(picture, prompt).ok());
  const ScheduledRequest request{.prompt = prompt.tokens, .pictures = prompt.pictures};
  const auto scheduler = std::move(Scheduler::Make(*other, {})).value();
  const auto refused = scheduler->Submit(request);
  ASSERT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("another tower"));
  // Another engine with the same file takes it.
  const auto same = Open();
  ASSERT_TRUE(same->UseTower(tower_).ok());
  EXPECT_TRUE(Session(*same, SequenceId{0}).AppendPicture(picture).ok());
}

TEST_P(PictureChatTest, ConversationsNameTheirPictures) {
  Conversation conversation;
  const PicturePtr picture = PictureOf(50, 40, 0x4080c0);
  conversation.Add("user", "What is this?", {picture});
  EXPECT_EQ(conversation.ContentText(0), "[picture]\nWhat is this?");
  Conversation copy = conversation.Copy();
  EXPECT_EQ(copy.Pictures()->size(), 1U);
  Conversation tail = copy.CutTail(0);
  EXPECT_EQ(copy.Pictures()->size(), 0U);
  EXPECT_EQ(tail.Pictures()->front(), picture);
  Conversation other;
  other.Append(std::move(tail));
  EXPECT_EQ(other.Pictures()->front(), picture);
  Conversation loaded;
  ASSERT_TRUE(loaded.ReadJson(other.ToJson()).ok());
  EXPECT_THAT(std::string(loaded.Pictures().status().message()), HasSubstr("message 1"));
}

INSTANTIATE_TEST_SUITE_P(All, PictureChatTest,
                         ::testing::Values(Gemma3Family(), PixtralFamily("llama", 1),
                                           PixtralFamily("mistral3", 2), Qwen25VlFamily()),
                         [](const auto& test) { return test.param.name; });

TEST(PictureFamilies, TowersThatNoModelTakesAreRefused) {
  const std::string path = ::testing::TempDir() + "other." + std::to_string(getpid()) + ".gguf";
  auto backend = std::move(MakeCpuBackend({.threads = 1})).value();
  for (const char* projector : {"qwen3vl_merger", "gemma4v"}) {
    ASSERT_TRUE(vision_test::WriteVisionFile({.projector = projector, .merge = 2}, 1, path).ok());
    const Status refused = OpenTower(path, *backend).status();
    EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
    EXPECT_THAT(
        std::string(refused.message()),
        HasSubstr(std::string("no model here takes pictures of the projector ") + projector));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvcache
