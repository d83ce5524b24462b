#include "dialect/call_history.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

TEST(CallHistory, ArgumentsAreAnObject) {
  const std::pair<Json, Json> cases[] = {
      {nullptr, Json::object()},
      {"", Json::object()},
      {" \n", Json::object()},
      {"null", Json::object()},
      {"{}", Json::object()},
      {Json::object({{"a", 1}}), Json::object({{"a", 1}})},
      {R"({"a": [1, "x"]})", Json::parse(R"({"a": [1, "x"]})")},
      {R"({"a": "cut o)", Json::object({{"a", "cut o"}})},
      {R"({"a": 1, "b)", Json::object({{"a", 1}})},
      {"words", "words"},
      {"[1]", "[1]"},
  };
  for (const auto& [given, wanted] : cases) EXPECT_EQ(CallArguments(given), wanted) << given;
}

Json Call(const char* name, const Json& id) {
  Json call = {{"function", {{"name", name}, {"arguments", "{}"}}}};
  if (!id.is_null()) call["id"] = id;
  return call;
}

Json Conversation(const Json& first_id, const Json& second_id, const Json& first_result,
                  const Json& second_result) {
  return Json::array({{{"role", "user"}, {"content", "q"}},
                      {{"role", "assistant"},
                       {"content", nullptr},
                       {"tool_calls", Json::array({Call("f", first_id), Call("g", second_id)})}},
                      first_result,
                      second_result});
}

TEST(CallHistory, ResultsHaveTheNamesAndIdsOfTheirCalls) {
  struct Case {
    const char* what;
    Json ids[2];
    Json results[2];
    const char* wanted[2][2];  // the names and ids of the results
  };
  const auto result = [](const Json& fields) {
    Json message = {{"role", "tool"}, {"content", "r"}};
    message.update(fields);
    return message;
  };
  const Case cases[] = {
      {"by id, in another order",
       {"x", "y"},
       {result({{"tool_call_id", "y"}}), result({{"tool_call_id", "x"}})},
       {{"g", "y"}, {"f", "x"}}},
      {"by name, as clients of Ollama do",
       {nullptr, nullptr},
       {result({{"tool_name", "g"}}), result({{"tool_name", "f"}})},
       {{"g", "call00002"}, {"f", "call00001"}}},
      {"by place",
       {"x", nullptr},
       {result(Json::object()), result(Json::object())},
       {{"f", "x"}, {"g", "call00002"}}},
      {"a name of its own stays",
       {"x", "y"},
       {result({{"tool_call_id", "x"}, {"name", "other"}}), result({{"tool_call_id", "y"}})},
       {{"other", "x"}, {"g", "y"}}},
  };
  for (const Case& each : cases) {
    Json messages = Conversation(each.ids[0], each.ids[1], each.results[0], each.results[1]);
    CompleteCalls(messages);
    for (std::size_t i = 0; i < 2; ++i) {
      const Json& message = messages[2 + i];
      EXPECT_EQ(message["name"], each.wanted[i][0]) << each.what;
      EXPECT_EQ(message["tool_call_id"], each.wanted[i][1]) << each.what;
    }
  }
}

TEST(CallHistory, IdsTakeTheFormOfTheTemplate) {
  const auto ids = [](IdForm form, const Json& given) {
    const Json result = {{"role", "tool"}, {"content", "r"}};
    Json first = result;
    Json second = result;
    first["tool_call_id"] = given[1];
    second["tool_call_id"] = given[0];
    Json messages = Conversation(given[0], given[1], first, second);
    CompleteCalls(messages);
    RewriteIds(form, "functions.", messages);
    const Json& calls = messages[1]["tool_calls"];
    EXPECT_EQ(messages[2]["tool_call_id"], calls[1]["id"]);
    EXPECT_EQ(messages[3]["tool_call_id"], calls[0]["id"]);
    return std::vector<std::string>{calls[0]["id"], calls[1]["id"]};
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(ids(IdForm::kAny, {"call_1", "2"}), (Ids{"call_1", "2"}));
  EXPECT_EQ(ids(IdForm::kNamed, {"call_1", "2"}), (Ids{"functions.f:0", "functions.g:1"}));
  EXPECT_EQ(ids(IdForm::kNamed, {"functions.f:7", "functions.g:8"}),
            (Ids{"functions.f:7", "functions.g:8"}));
  EXPECT_EQ(ids(IdForm::kNine, {"abcdef123", "ABC456789"}), (Ids{"abcdef123", "ABC456789"}));
  const Ids mapped = ids(IdForm::kNine, {"call_0123456789", "toolu_5"});
  EXPECT_NE(mapped[0], mapped[1]);
  for (const std::string& id : mapped) {
    EXPECT_EQ(id.size(), 9U);
    EXPECT_EQ(
        id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        id.npos);
  }
}

TEST(CallHistory, WhatIsNoCallStays) {
  Json messages = Json::parse(R"([7, {"role": "assistant", "tool_calls": "f"},
      {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, 3]},
      {"role": "tool", "content": "r"}, {"role": 1, "tool_calls": [null]}])");
  const Json given = messages;
  CompleteCalls(messages);
  RewriteIds(IdForm::kNamed, "functions.", messages);
  EXPECT_EQ(messages, given);
}

TEST(CallHistory, AnUnusedIdIsNotAmongThoseOfTheMessages) {
  EXPECT_EQ(UnusedCallId(Json::array()), "call00001");
  EXPECT_EQ(UnusedCallId(Conversation("call00003", "x", {}, {})), "call00004");
}

}  // namespace
}  // namespace kvcache
