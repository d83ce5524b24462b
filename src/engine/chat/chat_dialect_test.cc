// Tests chats with models that think and call tools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "chat_template/chat_template.h"
#include "engine/engine_impl.h"
#include "kvcache_engine/chat.h"
#include "support/scripted_model.h"

namespace kvcache::chat_dialect_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

// Writes back what ScriptedModel says.
constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|calls|>' if m.tool_calls else '<|says|>' }}"
    "{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% "
    "endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls %}{{ '\\n<tool_call>\\n{\"name\": \"' + c.function.name + '\", "
    "\"arguments\": ' }}"
    "{{ c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '</s>' }}"
    "{% else %}{{ '<s>' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|calls|>' if (tools or calls) and messages[-1].role != 'tool' else '<|says|>' }}{% endif "
    "%}";

// The same for what Command's models say, in control tokens.
constexpr const char* kCommand =
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|calls|>' if m.tool_calls else '<|says|>' }}"
    "{% if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% "
    "endif %}"
    "{% if m.tool_calls %}<|START_ACTION|>[{% for c in m.tool_calls %}"
    "{\"tool_call_id\": \"0\", \"tool_name\": \"{{ c.function.name }}\", "
    "\"parameters\": {{ c.function.arguments | tojson }}}{% endfor %}]<|END_ACTION|>{% endif %}"
    "{% if m.content %}{{ m.content }}{% endif %}{{ '</s>' }}"
    "{% else %}{{ '<s>' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|calls|>' if messages[-1].role != 'tool' else '<|says|>' "
    "}}{% endif %}";

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "get_weather", "description": "Weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}])";
constexpr const char* kThoughts = "The user wants the weather.";

class ChatDialectTest : public ::testing::Test {
 protected:
  void TearDown() override {
    chat_.reset();
    engine_.reset();
    std::filesystem::remove(path_);
  }

  // Opens a chat with a question.
  void Open(const ChatOptions& options, const Script& script = {}) {
    ASSERT_TRUE(ScriptedModel::Write(path_, script).ok());
    engine_ = std::move(Engine::Open(path_, {.threads = 1, .context = 1024})).value();
    auto chat = Chat::Open(*engine_, options);
    ASSERT_TRUE(chat.ok()) << chat.status().message();
    chat_ = std::move(*chat);
    chat_->conversation().Add("user", "How is the weather?");
  }

  void OpenWithTools() {
    Open({.template_source = kTemplate});
    ASSERT_TRUE(chat_->conversation().SetTools(kTools).ok());
  }

  void OpenCommand() {
    Open({.template_source = kCommand, .dialect = "command"},
         {.says = {"<|START_THINKING|>", "Hm", ".", "<|END_THINKING|>", "<|START_ACTION|>",
                   "[{\"tool_call_id\": \"0\", \"tool_name\": \"get_",
                   "weather\", \"parameters\": {\"city\": ", "\"Paris\"}}]", "<|END_ACTION|>"},
          .controls = {"<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>",
                       "<|END_ACTION|>"}});
    ASSERT_TRUE(chat_->conversation().SetTools(kTools).ok());
  }

  ChatTurn Answer(GenerateRequest request = {}, ChatHandlers handlers = {}) {
    request.sampling.temperature = 0.0f;
    if (request.max_tokens < 0) request.max_tokens = 100;
    auto turn = chat_->Answer(std::move(request), std::move(handlers));
    EXPECT_TRUE(turn.ok()) << turn.status().message();
    return turn.ok() ? std::move(*turn) : ChatTurn();
  }

  const Json& LastMessage() const { return chat_->input().messages.back(); }

  std::string path_ = ::testing::TempDir() + "chat_dialect." + std::to_string(getpid()) + ".gguf";
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Chat> chat_;
};

TEST_F(ChatDialectTest, ThoughtsTextAndCallsAreApart) {
  OpenWithTools();
  EXPECT_EQ(chat_->dialect_name(), "hermes");
  EXPECT_TRUE(chat_->calls_tools());
  std::string said;
  std::string thought;
  GenerateRequest request;
  request.on_text = [&](std::string_view text) { return !said.append(text).empty(); };
  const ChatTurn turn =
      Answer(std::move(request),
             {.on_thoughts = [&](std::string_view text) { return !thought.append(text).empty(); }});
  EXPECT_EQ(turn.thoughts, kThoughts);
  EXPECT_EQ(turn.result.text, "Let me look.");
  EXPECT_EQ(thought, turn.thoughts);
  EXPECT_EQ(said, turn.result.text);
  ASSERT_EQ(turn.calls.size(), 1U);
  EXPECT_EQ(turn.calls[0].name, "get_weather");
  EXPECT_EQ(turn.calls[0].arguments, R"({"city":"Paris"})");
  EXPECT_EQ(LastMessage(), Json::parse(R"({"role": "assistant", "content": "Let me look.",
      "reasoning_content": "The user wants the weather.",
      "tool_calls": [{"id": "call00001", "type": "function",
                      "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}]})"));
}

TEST_F(ChatDialectTest, TheNextTurnComputesNothingAgain) {
  OpenWithTools();
  const ChatTurn first = Answer();
  ASSERT_EQ(first.calls.size(), 1U);
  chat_->conversation().AddToolResult(first.calls[0].id, first.calls[0].name, "22 degrees");
  EXPECT_EQ(LastMessage()["tool_call_id"], "call00001");
  const ChatTurn second = Answer();
  EXPECT_EQ(second.result.text, "The sun shines.");
  EXPECT_EQ(second.result.reuse.restored, first.result.evaluated);
  EXPECT_EQ(second.dropped, 0);
  chat_->conversation().Add("user", "And tomorrow?");
  const ChatTurn third = Answer();
  EXPECT_EQ(third.result.reuse.restored, second.result.evaluated);
  ASSERT_EQ(third.calls.size(), 1U);
  EXPECT_EQ(third.calls[0].id, "call00002");
}

TEST_F(ChatDialectTest, ControlTokensAreMarkersAndAreReused) {
  OpenCommand();
  EXPECT_EQ(chat_->dialect_name(), "command");
  const ChatTurn first = Answer();
  EXPECT_EQ(first.thoughts, "Hm.");
  EXPECT_EQ(first.result.text, "");
  ASSERT_EQ(first.calls.size(), 1U);
  EXPECT_EQ(first.calls[0].arguments, R"({"city":"Paris"})");
  chat_->conversation().AddToolResult(first.calls[0].id, first.calls[0].name, "22 degrees");
  const ChatTurn second = Answer();
  EXPECT_EQ(second.result.text, "The sun shines.");
  EXPECT_EQ(second.result.reuse.restored, first.result.evaluated);
  EXPECT_EQ(second.dropped, 0);
}

TEST_F(ChatDialectTest, WithoutToolsNothingIsACall) {
  Open({.template_source = kTemplate});
  ASSERT_TRUE(chat_->conversation().SetVariable("calls", "true").ok());
  const ChatTurn turn = Answer();
  EXPECT_TRUE(turn.calls.empty());
  EXPECT_EQ(turn.thoughts, kThoughts);
  EXPECT_THAT(turn.result.text, HasSubstr("Let me look.\n<tool_call>"));
  EXPECT_FALSE(LastMessage().contains("tool_calls"));
}

TEST_F(ChatDialectTest, AnInterruptInThoughtsKeepsThem) {
  OpenWithTools();
  GenerateRequest request;
  request.on_text = [](std::string_view) -> bool {
    ADD_FAILURE();
    return false;
  };
  const ChatTurn turn =
      Answer(std::move(request), {.on_thoughts = [](std::string_view) { return false; }});
  EXPECT_EQ(turn.result.stop, StopReason::kInterrupted);
  EXPECT_EQ(turn.thoughts, "The user wants");
  EXPECT_EQ(turn.result.text, "");
  EXPECT_EQ(LastMessage(), Json::parse(R"({"role": "assistant", "content": "",
                                           "reasoning_content": "The user wants"})"));
  chat_->conversation().Add("user", "Go on.");
  EXPECT_EQ(Answer().calls.size(), 1U);
}

TEST_F(ChatDialectTest, AStopInACallClosesIt) {
  OpenWithTools();
  GenerateRequest request;
  request.stop = {"ris"};
  const ChatTurn turn = Answer(std::move(request));
  EXPECT_EQ(turn.result.stop, StopReason::kStopString);
  ASSERT_EQ(turn.calls.size(), 1U);
  EXPECT_EQ(turn.calls[0].arguments, R"({"city":"Pa"})");
  chat_->conversation().AddToolResult(turn.calls[0].id, turn.calls[0].name, "?");
  const ChatTurn next = Answer();
  EXPECT_EQ(next.result.text, "The sun shines.");
  EXPECT_EQ(next.result.reuse.restored + next.result.computed_tokens, next.result.prompt_tokens);
}

TEST_F(ChatDialectTest, AnUnknownDialectIsAnErrorThatNamesAll) {
  Open({.template_source = kTemplate});
  const auto chat = Chat::Open(*engine_, {.dialect = "klingon"});
  ASSERT_FALSE(chat.ok());
  EXPECT_THAT(chat.status().message(), HasSubstr("unknown dialect 'klingon'"));
  EXPECT_THAT(chat.status().message(), HasSubstr("hermes"));
}

// A conversation from a file may have calls as OpenAI's clients keep them, and what is none.
TEST_F(ChatDialectTest, HistoriesAreCompleted) {
  OpenWithTools();
  ASSERT_TRUE(chat_->conversation()
                  .ReadJson(R"([{"role": "user", "content": "q"},
      {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
      {"role": "tool", "content": "r"}])")
                  .ok());
  EXPECT_EQ(Answer().result.text, "The sun shines.");
  EXPECT_FALSE(chat_->input().messages[1]["tool_calls"][0].contains("id"));
  const std::string prompt = chat_->conversation().ToJson();
  EXPECT_THAT(prompt, HasSubstr(R"("{\"city\": \"Oslo\"}")"));
}

}  // namespace
}  // namespace kvcache::chat_dialect_test
