#include "server/request/volatile_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::volatile_lines_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRules =
    "# what some client sends\n"
    "remove x-billing: *; cch=*;\n"
    "move Current time: *\r\n"
    "\n"
    "remove *tokens left*\n";

VolatileLines Rules() {
  return VolatileLines::Parse(kRules, "test").value();
}

TEST(VolatileLinesTest, PatternsMatchWholeLines) {
  for (const auto& [line, pattern, matches] :
       std::vector<std::tuple<const char*, const char*, bool>>{{"abc", "abc", true},
                                                               {"abcd", "abc", false},
                                                               {"abc", "abcd", false},
                                                               {"abc", "a*", true},
                                                               {"a", "a*", true},
                                                               {"abc", "*c", true},
                                                               {"abcx", "*c", false},
                                                               {"abxbc", "a*bc", true},
                                                               {"a.b.c", "a*.*c", true},
                                                               {"", "*", true},
                                                               {"aab", "*a*b*", true},
                                                               {"b", "*a*b*", false}}) {
    EXPECT_EQ(MatchesPattern(line, pattern), matches) << line << " " << pattern;
  }
  // Many stars take no more steps than the product of both lengths.
  EXPECT_FALSE(MatchesPattern(std::string(100'000, 'a'), "a*a*a*a*a*a*a*a*b"));
}

TEST(VolatileLinesTest, LinesAreRemovedOrMoved) {
  for (const auto& [body, expected] : std::vector<std::pair<Json, Json>>{
           // OpenAI
           {{{"messages",
              {{{"role", "system"}, {"content", "Be brief.\nCurrent time: 12:00\nBe kind."}},
               {{"role", "user"}, {"content", "Hi\n3 tokens left"}},
               {{"role", "assistant"}, {"content", "9 tokens left"}},
               {{"role", "user"}, {"content", "Current time: 1:00\nAnd?"}}}}},
            {{"messages",
              {{{"role", "system"}, {"content", "Be brief.\nBe kind."}},
               {{"role", "user"}, {"content", "Hi"}},
               {{"role", "assistant"}, {"content", "9 tokens left"}},
               {{"role", "user"}, {"content", "Current time: 1:00\nAnd?\nCurrent time: 12:00"}}}}}},
           // Anthropic
           {{{"system",
              {{{"type", "text"}, {"text", "x-billing: 1; cch=2;"}},
               {{"type", "text"}, {"text", "You are kind.\nCurrent time: 2"}}}},
             {"messages",
              {{{"role", "user"},
                {"content",
                 {{{"type", "tool_result"},
                   {"tool_use_id", "a"},
                   {"content", "Rain\n5 tokens left\n"}}}}}}}},
            {{"system", {{{"type", "text"}, {"text", "You are kind."}}}},
             {"messages",
              {{{"role", "user"},
                {"content",
                 {{{"type", "tool_result"}, {"tool_use_id", "a"}, {"content", "Rain\n"}},
                  {{"type", "text"}, {"text", "\nCurrent time: 2"}}}}}}}}},
           // Responses
           {{{"instructions", "Current time: 5"}, {"input", "Hi"}},
            {{"instructions", ""}, {"input", "Hi\nCurrent time: 5"}}},
           {{{"instructions", "Current time: 5"},
             {"input",
              {{{"role", "user"}, {"content", "Hi"}},
               {{"type", "reasoning"}, {"content", {{{"text", "1 tokens left\nSo"}}}}},
               {{"type", "function_call"}, {"name", "f"}, {"arguments", "{}"}},
               {{"type", "function_call_output"}, {"output", "Rain\n2 tokens left"}}}}},
            {{"instructions", ""},
             {"input",
              {{{"role", "user"}, {"content", "Hi"}},
               {{"type", "reasoning"}, {"content", {{{"text", "1 tokens left\nSo"}}}}},
               {{"type", "function_call"}, {"name", "f"}, {"arguments", "{}"}},
               {{"type", "function_call_output"}, {"output", "Rain\nCurrent time: 5"}}}}}},
           {{{"instructions", "Current time: 5"},
             {"input",
              {{{"type", "function_call_output"}, {"output", {{{"text", "Rain"}}}}},
               {{"type", "reasoning"}, {"role", "user"}, {"content", "1 tokens left"}},
               {{"type", "message"}, {"role", "assistant"}, {"content", "2 tokens left"}}}}},
            {{"instructions", ""},
             {"input",
              {{{"type", "function_call_output"},
                {"output",
                 {{{"text", "Rain"}}, {{"type", "input_text"}, {"text", "\nCurrent time: 5"}}}}},
               {{"type", "reasoning"}, {"role", "user"}, {"content", "1 tokens left"}},
               {{"type", "message"}, {"role", "assistant"}, {"content", "2 tokens left"}}}}}},
           // Lines that have no end to go to stay.
           {{{"system", "Current time: 5\n1 tokens left"}, {"messages", nullptr}},
            {{"system", "Current time: 5"}, {"messages", nullptr}}},
           {{{"system", "Current time: 5"}, {"messages", Json::array()}},
            {{"system", "Current time: 5"}, {"messages", Json::array()}}},
           {{{"messages", {{{"role", "system"}, {"content", "Current time: 5"}}}}},
            {{"messages", {{{"role", "system"}, {"content", "Current time: 5"}}}}}},
           {{{"system", "Current time: 5"},
             {"messages", {{{"role", "user"}, {"content", nullptr}}}}},
            {{"system", "Current time: 5"},
             {"messages", {{{"role", "user"}, {"content", nullptr}}}}}},
           {{{"instructions", "Current time: 5"}, {"messages", nullptr}, {"input", "Hi"}},
            {{"instructions", ""}, {"messages", nullptr}, {"input", "Hi\nCurrent time: 5"}}},
           {{{"instructions", "Current time: 5"}, {"messages", "Hi"}, {"input", nullptr}},
            {{"instructions", ""}, {"messages", "Hi\nCurrent time: 5"}, {"input", nullptr}}},
           // No conversation
           {{{"messages", 5}, {"system", {1}}, {"input", {{"content", 1}}}},
            {{"messages", 5}, {"system", {1}}, {"input", {{"content", 1}}}}},
           {{{"prompt", "Current time: 5"}}, {{"prompt", "Current time: 5"}}}}) {
    Json changed = body;
    (void)Rules().Apply(changed);
    EXPECT_EQ(changed, expected) << body;
  }
}

TEST(VolatileLinesTest, PromptsThatAreMessagesAreRead) {
  const Json body = {{"system", "Current time: 5"}, {"prompt", "Hi\n3 tokens left"}};
  Json changed = body;
  const VolatileCounts counts = Rules().Apply(changed, PromptUse::kMessage);
  EXPECT_EQ(changed, Json({{"system", ""}, {"prompt", "Hi\nCurrent time: 5"}}));
  EXPECT_EQ(counts.removed, 1);
  EXPECT_EQ(counts.moved, 1);
  changed = body;
  EXPECT_EQ(Rules().Apply(changed, PromptUse::kRaw).removed, 0);
  EXPECT_EQ(changed, body);
}

TEST_F(ServerTest, VolatileLinesReachOllamasPrompt) {
  Start({.volatile_lines = Rules()});
  const auto length = [&](const std::string& prompt, bool raw) {
    const Json body = {
        {"prompt", prompt}, {"raw", raw}, {"stream", false}, {"options", {{"num_predict", 1}}}};
    return Post("/api/generate", body).json()["prompt_eval_count"].get<int>();
  };
  EXPECT_EQ(length("Hi\n3 tokens left", false), length("Hi", false));
  EXPECT_GT(length("Hi\n3 tokens left", true), length("Hi", true));
}

TEST(VolatileLinesTest, CountsAreReported) {
  Json body = {{"system", "Current time: 5\nx-billing: a; cch=b;\n1 tokens left"},
               {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  const VolatileCounts counts = Rules().Apply(body);
  EXPECT_EQ(counts.removed, 2);
  EXPECT_EQ(counts.moved, 1);
  EXPECT_EQ(VolatileLines().Apply(body).removed, 0);
}

TEST(VolatileLinesTest, ErrorsNameTheLine) {
  for (const auto& [text, problem] : std::vector<std::pair<const char*, const char*>>{
           {"", "there is no pattern"},
           {"# only\n\n", "there is no pattern"},
           {"remove a\ndrop b", "keys, line 2: must begin with remove or move"},
           {"remove", "line 1: needs a pattern"},
           {"move * *", "line 1: needs a pattern"}}) {
    const auto lines = VolatileLines::Parse(text, "keys");
    ASSERT_FALSE(lines.ok()) << text;
    EXPECT_THAT(lines.status().message(), HasSubstr(problem));
  }
  EXPECT_THAT(VolatileLines::Read("/no/such").status().message(), HasSubstr("/no/such"));
}

// A line at the beginning that changes on every call costs nothing, on any API.
TEST_F(ServerTest, VolatileLinesLeaveThePrefix) {
  Start({.volatile_lines = Rules()});
  const std::string story = "One day Mia went to the lake. She had a red ball and a green kite.";
  int call = 0;
  const auto system = [&] { return StrCat("x-billing: a; cch=", ++call * 7919, ";\n", story); };
  const auto cached = [&](bool streamed) {
    Json body = Chat("Go on.");
    body["messages"].insert(body["messages"].begin(),
                            Json({{"role", "system"}, {"content", system()}}));
    body["stream"] = streamed;
    body["stream_options"] = {{"include_usage", true}};
    const HttpAnswer answer = Post("/v1/chat/completions", body);
    const Json usage = streamed ? Events(answer.body).back()["usage"] : answer.json()["usage"];
    return usage["prompt_tokens"].get<int>() -
           usage["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_GT(cached(false), 20);
  EXPECT_EQ(cached(false), 1);
  EXPECT_EQ(cached(true), 1);
  const Json anthropic =
      Post("/v1/messages",
           {{"system", system()}, {"messages", Chat("Go on.")["messages"]}, {"max_tokens", 1}})
          .json();
  EXPECT_EQ(anthropic["usage"]["input_tokens"], 1) << anthropic;
  const Json probe = Post("/probe", {{"messages",
                                      {{{"role", "system"}, {"content", system()}},
                                       {{"role", "user"}, {"content", "Go on."}}}}})
                         .json();
  EXPECT_EQ(probe["removed_lines"], 1);
  EXPECT_EQ(probe["matched_tokens"].get<int>() + 1, probe["prompt_tokens"].get<int>());
  const Json text = Post("/apply-template",
                         {{"messages", {{{"role", "user"}, {"content", "x-billing: ; cch=;"}}}}})
                        .json();
  EXPECT_THAT(text["prompt"].get<std::string>(), ::testing::Not(HasSubstr("billing")));
}

// The report names the first line that differs from the nearest prompt in the cache.
TEST_F(ServerTest, TheFirstDifferingLineIsNamed) {
  const std::string rest = "\nMia had a red ball.\nOtto had a kite.";
  for (const char* time : {"10:15", "11:30"}) {
    const std::string prompt = StrCat("Nina went to the lake.\nIt is ", time, " now.", rest);
    if (time[1] == '1') {
      const Json probe = Post("/probe", Json{{"prompt", prompt}}).json();
      EXPECT_EQ(probe["difference"]["line"], "It is 11:30 now.") << probe;
    }
    EXPECT_EQ(Post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 1}}).status, 200);
  }
  const Json state = Get("/state").json();
  EXPECT_EQ(state["ended"].back()["differs_at"], "It is 11:30 now.") << state["ended"];
}

// Of a long line both sides of the place are shown, in whole characters.
TEST_F(ServerTest, TheDifferingPlaceIsInTheMiddleOfALongLine) {
  const std::string before =
      "Nina and \u00e4\u00e4\u00e4\u00e4 went to the lake and to the old "
      "house and to the green tree and saw the cat and the dog and the ";
  const std::string after =
      " and went home and had a cake and \u00e4\u00e4\u00e4\u00e4 and was "
      "happy and saw the moon and the sun and the rain and the big red kite";
  const auto prompt = [&](const char* middle) { return StrCat("Hi.\n", before, middle, after); };
  EXPECT_EQ(Post("/v1/completions", {{"prompt", prompt("boat")}, {"max_tokens", 1}}).status, 200);
  const Json probe = Post("/probe", Json{{"prompt", prompt("frog")}}).json();
  const std::string line = probe["difference"]["line"];
  EXPECT_LE(line.size(), 200U);
  EXPECT_THAT(line, HasSubstr("and the dog and the frog and went home"));
  EXPECT_THAT(before + "frog" + after, HasSubstr(line));
}

}  // namespace
}  // namespace kvcache::server::volatile_lines_test
