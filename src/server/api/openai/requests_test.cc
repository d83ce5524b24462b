// What OpenAI's routes take, ignore and refuse: hints, neutral values, limits, prompts, overflows.
#include <string>
#include <utility>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::requests_test {
namespace {

using Given = std::vector<std::pair<const char*, Json>>;

Json Completion(const Json& prompt, int max = 8) {
  return {{"prompt", prompt}, {"max_tokens", max}, {"temperature", 0}};
}

Json Response(const std::string& input, int max = 8) {
  return {{"input", input}, {"max_output_tokens", max}, {"temperature", 0}};
}

class OpenAiRequestsTest : public ServerTest {
 protected:
  // Returns the text of an answer of any of the three routes.
  static std::string TextOf(const HttpAnswer& answer) {
    if (answer.status != 200) return "status " + answer.body;
    const Json json = answer.json();
    if (json.contains("output")) return json["output"][0]["content"][0]["text"];
    const Json& choice = json["choices"][0];
    return choice.contains("text") ? choice["text"] : choice["message"]["content"];
  }

  // Checks that the fields change nothing on a route.
  void ExpectIgnored(const std::string& path, const Json& body, const Given& given) const {
    const std::string expected = TextOf(Post(path, body));
    for (const auto& [name, value] : given) {
      Json with = body;
      with[name] = value;
      EXPECT_EQ(TextOf(Post(path, with)), expected) << path << " " << name << " " << value;
    }
  }

  void ExpectRefused(const std::string& path, const Json& body, const Given& given) const {
    for (const auto& [name, value] : given) {
      Json with = body;
      with[name] = value;
      const HttpAnswer answer = Post(path, with);
      EXPECT_EQ(answer.status, 400) << path << " " << name << " " << value << answer.body;
      const std::string param = answer.json()["error"]["param"].get<std::string>();
      EXPECT_TRUE(param.starts_with(name)) << path << " " << name << " " << param;
    }
  }
};

TEST_F(OpenAiRequestsTest, HintsAreNeverRefused) {
  const Given hints = {{"verbosity", "low"},
                       {"verbosity", "high"},
                       {"reasoning_effort", "xhigh"},
                       {"service_tier", "priority"},
                       {"store", true},
                       {"metadata", {{"a", "b"}}},
                       {"prompt_cache_key", "k"},
                       {"prompt_cache_retention", "24h"},
                       {"safety_identifier", "s"},
                       {"user", "u"},
                       {"prediction", {{"type", "content"}, {"content", "x"}}},
                       {"modalities", Json::array({"text"})},
                       {"function_call", "auto"},
                       {"functions", Json::array()},
                       {"parallel_tool_calls", false},
                       {"stream_options", {{"include_obfuscation", false}}},
                       {"cache_prompt", true},
                       {"id_slot", -1},
                       {"priority", 1},
                       {"unheard_of", Json::array({1})}};
  ExpectIgnored("/v1/chat/completions", Chat("Tell me of a fox.", 8), hints);
  ExpectIgnored("/v1/completions", Completion("Once"), hints);
  const Given of_responses = {{"text", {{"verbosity", "low"}}},
                              {"text", {{"verbosity", "high"}, {"format", {{"type", "text"}}}}},
                              {"text", {{"verbosity", 5}}},
                              {"reasoning", {{"effort", "xhigh"}, {"summary", "detailed"}}},
                              {"service_tier", "flex"},
                              {"prompt_cache_key", "k"},
                              {"prompt_cache_retention", "24h"},
                              {"safety_identifier", "s"},
                              {"max_tool_calls", 3},
                              {"truncation", "auto"},
                              {"user", "u"},
                              {"verbosity", "low"},
                              {"stream_options", {{"include_obfuscation", false}}}};
  ExpectIgnored("/v1/responses", Response("Tell me of a fox."), of_responses);
  Json body = Response("Tell me of a fox.");
  body["text"] = {{"verbosity", "low"}};
  EXPECT_EQ(Post("/v1/responses", body).json()["text"]["verbosity"], "low");
}

TEST_F(OpenAiRequestsTest, NeutralValuesOfSamplersAreTaken) {
  const Given neutral = {{"typical_p", 1},
                         {"typical_p", 1.0},
                         {"tfs_z", 1},
                         {"mirostat", 0},
                         {"mirostat_tau", 5.0},
                         {"top_k", 40.0},
                         {"top_k", -1},
                         {"min_p", 0},
                         {"top_p", 1},
                         {"frequency_penalty", 0},
                         {"presence_penalty", 0.0},
                         {"repeat_penalty", 1.0},
                         {"repetition_penalty", 1},
                         {"repeat_last_n", 64},
                         {"xtc_probability", 0.0},
                         {"dry_multiplier", 0},
                         {"dynatemp_range", 0},
                         {"top_n_sigma", -1},
                         {"ignore_eos", false},
                         {"stop_token_ids", Json::array()},
                         {"min_tokens", 0},
                         {"use_beam_search", false},
                         {"truncate_prompt_tokens", -1},
                         {"truncate_prompt_tokens", nullptr},
                         {"include_stop_str_in_output", false},
                         {"no_stop_trim", false},
                         {"skip_special_tokens", true},
                         {"spaces_between_special_tokens", true},
                         {"return_tokens_as_token_ids", false},
                         {"stop_regex", ""},
                         {"best_of", 1},
                         {"seed", 7.0},
                         {"n", 1.0}};
  ExpectIgnored("/v1/chat/completions", Chat("Tell me of a fox.", 8), neutral);
  ExpectIgnored("/v1/completions", Completion("Once"), neutral);
  ExpectIgnored("/v1/responses", Response("Tell me of a fox."), neutral);
}

TEST_F(OpenAiRequestsTest, WhatWouldChangeTheAnswerIsRefused) {
  const Given both = {{"truncate_prompt_tokens", 4},
                      {"truncate_prompt_tokens", 0},
                      {"truncate_prompt_tokens", "4"},
                      {"include_stop_str_in_output", true},
                      {"include_stop_str_in_output", 1},
                      {"no_stop_trim", true},
                      {"skip_special_tokens", false},
                      {"spaces_between_special_tokens", false},
                      {"return_tokens_as_token_ids", true},
                      {"stop_regex", "a+"},
                      {"typical_p", 0.5},
                      {"tfs_z", 0.9},
                      {"mirostat", 2},
                      {"xtc_probability", 0.5},
                      {"dry_multiplier", 0.8},
                      {"dynatemp_range", 0.5},
                      {"top_n_sigma", 1.0},
                      {"ignore_eos", true},
                      {"stop_token_ids", Json::array({1})},
                      {"min_tokens", 5},
                      {"top_k", 40.5},
                      {"top_k", "40"},
                      {"best_of", 2},
                      {"echo", true},
                      {"grammar", "root ::= \"a\""},
                      {"guided_regex", "a+"},
                      {"guided_grammar", "x"},
                      {"regex", "a+"},
                      {"ebnf", "x"},
                      {"structural_tag", "{}"},
                      {"max_tokens", -2},
                      {"max_tokens", 0}};
  ExpectRefused("/v1/chat/completions", Chat("Hi", 8), both);
  ExpectRefused("/v1/completions", Completion("Once"), both);
  ExpectRefused("/v1/chat/completions", Chat("Hi", 8),
                {{"functions", Json::array({{{"name", "f"}}})},
                 {"function_call", {{"name", "f"}}},
                 {"modalities", Json::array({"text", "audio"})},
                 {"audio", {{"voice", "x"}}},
                 {"max_completion_tokens", -2}});
  ExpectRefused("/v1/completions", Completion("Once"), {{"suffix", "end"}});
  ExpectRefused("/v1/responses", Response("Hi"),
                {{"typical_p", 0.5}, {"guided_regex", "a+"}, {"max_output_tokens", -2}});
}

TEST_F(OpenAiRequestsTest, MinusOneIsNoLimit) {
  const auto ends = [&](const std::string& path, Json body, const char* name, const Json& max) {
    body["stop"] = ".";
    body.erase("max_tokens");
    body.erase("max_output_tokens");
    if (!max.is_null()) body[name] = max;
    return TextOf(Post(path, body));
  };
  const Json chat = Chat("Tell me of a fox.");
  const std::string expected = ends("/v1/chat/completions", chat, "max_tokens", nullptr);
  EXPECT_GT(expected.size(), 20);
  for (const char* const name : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    for (const Json& max : {Json(-1), Json(-1.0), Json(4'000'000'000), Json(INT64_MAX)}) {
      EXPECT_EQ(ends("/v1/chat/completions", chat, name, max), expected) << name << max;
    }
  }
  const std::string text = ends("/v1/completions", Completion("Once"), "max_tokens", 400);
  for (const char* const name : {"max_tokens", "n_predict"}) {
    EXPECT_EQ(ends("/v1/completions", Completion("Once"), name, -1), text) << name;
  }
  const Json response =
      Post("/v1/responses", Json{{"input", "Hi"}, {"max_output_tokens", -1}}).json();
  EXPECT_EQ(response["max_output_tokens"], nullptr);
  EXPECT_GT(response["usage"]["output_tokens"], 16);
}

// The window of penalties: two tokens that repeat are penalised only inside of it.
TEST_F(OpenAiRequestsTest, RepeatPenaltiesHaveAllTheirNames) {
  const auto text = [&](const Given& given) {
    Json body = Completion("Once upon a time there was", 24);
    for (const auto& [name, value] : given) body[name] = value;
    return TextOf(Post("/v1/completions", body));
  };
  const std::string plain = text({});
  const std::string penalised = text({{"repeat_penalty", 1.8}});
  EXPECT_NE(penalised, plain);
  EXPECT_EQ(text({{"repetition_penalty", 1.8}}), penalised);
  EXPECT_EQ(text({{"repeat_penalty", 1.8}, {"repeat_last_n", -1}}), penalised);
  EXPECT_EQ(text({{"repeat_penalty", 1.8}, {"repeat_last_n", 0}}), plain);
  EXPECT_EQ(text({{"frequency_penalty", 2}, {"repeat_last_n", 0}}), plain);
  EXPECT_NE(text({{"repeat_penalty", 1.8}, {"repeat_last_n", 4}}), penalised);
}

// Returns the texts of the choices by their index, whole or streamed.
std::vector<std::string> ChoiceTexts(const HttpAnswer& answer, bool stream, std::size_t count) {
  std::vector<std::string> texts(count);
  if (!stream) {
    const Json json = answer.json();
    EXPECT_EQ(json["choices"].size(), count) << answer.body;
    for (std::size_t i = 0; i < json["choices"].size(); ++i) {
      EXPECT_EQ(json["choices"][i]["index"], i);
      texts[i] = json["choices"][i]["text"];
    }
    return texts;
  }
  std::size_t ends = 0;
  for (const Json& event : Events(answer.body)) {
    for (const Json& choice : event["choices"]) {
      texts.at(choice["index"].get<std::size_t>()) += choice["text"].get<std::string>();
      ends += choice["finish_reason"].is_null() ? 0 : 1;
    }
  }
  EXPECT_EQ(ends, count) << answer.body;
  return texts;
}

TEST_F(OpenAiRequestsTest, EachPromptHasItsChoices) {
  const std::vector<std::string> prompts = {"Once upon a time", "The dog", "A red ball"};
  Json body = Completion(prompts);
  body["temperature"] = 1;
  body["seed"] = 5;
  body["n"] = 2;
  std::vector<std::string> expected;
  int prompt_tokens = 0;
  for (const std::string& prompt : prompts) {
    Json alone = body;
    alone["prompt"] = prompt;
    const HttpAnswer answer = Post("/v1/completions", alone);
    for (const std::string& text : ChoiceTexts(answer, false, 2)) expected.push_back(text);
    prompt_tokens += answer.json()["usage"]["prompt_tokens"].get<int>();
    alone["prompt"] = Json::array({prompt});
    EXPECT_EQ(ChoiceTexts(Post("/v1/completions", alone), false, 2),
              std::vector<std::string>(expected.end() - 2, expected.end()));
  }
  const HttpAnswer whole = Post("/v1/completions", body);
  EXPECT_EQ(ChoiceTexts(whole, false, 6), expected);
  const Json usage = whole.json()["usage"];
  EXPECT_EQ(usage["prompt_tokens"], prompt_tokens);
  EXPECT_EQ(usage["completion_tokens"], 48);
  EXPECT_EQ(usage["total_tokens"], prompt_tokens + 48);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpAnswer streamed = Post("/v1/completions", body);
  EXPECT_EQ(ChoiceTexts(streamed, true, 6), expected);
  EXPECT_EQ(Events(streamed.body).back()["usage"]["total_tokens"], prompt_tokens + 48);
}

TEST_F(OpenAiRequestsTest, PromptsMayBeTokens) {
  const auto tokens = [&](const std::string& text) {
    return Post("/tokenize", Json{{"content", text}, {"add_special", true}}).json()["tokens"];
  };
  const std::vector<std::string> expected = {
      TextOf(Post("/v1/completions", Completion("Once upon a time"))),
      TextOf(Post("/v1/completions", Completion("The dog")))};
  const Json once = tokens("Once upon a time");
  const Json dog = tokens("The dog");
  EXPECT_EQ(ChoiceTexts(Post("/v1/completions", Completion(once)), false, 1)[0], expected[0]);
  EXPECT_EQ(ChoiceTexts(Post("/v1/completions", Completion(Json::array({once, dog}))), false, 2),
            expected);
  EXPECT_EQ(
      ChoiceTexts(Post("/v1/completions", Completion(Json::array({once, "The dog"}))), false, 2),
      expected);
  Json floats = Json::array();
  for (const Json& token : once) floats.push_back(token.get<double>());
  EXPECT_EQ(TextOf(Post("/v1/completions", Completion(floats))), expected[0]);
  for (const Json& bad :
       {Json::array(), Json::array({Json::array()}), Json::array({-1}), Json::array({1.5}),
        Json::array({1, "x"}), Json::array({"x", 1}), Json::array({99999999}),
        Json::array({nullptr}), Json::array({"x", nullptr}), Json::object(), Json(5), Json(true),
        Json(std::vector<std::string>(129, "x"))}) {
    const HttpAnswer answer = Post("/v1/completions", Completion(bad));
    EXPECT_EQ(answer.status, 400) << bad << answer.body;
    EXPECT_TRUE(answer.json()["error"]["param"].get<std::string>().starts_with("prompt"));
  }
  Json too_many = Completion(std::vector<std::string>(128, "x"));
  too_many["n"] = 16;
  EXPECT_EQ(Post("/v1/completions", too_many).json()["error"]["param"], "n");
}

TEST_F(OpenAiRequestsTest, AnOverflowHasTheWordsOfItsApi) {
  std::string longer;
  for (int i = 0; i < 600; ++i) longer += "Tell me more. ";
  const struct {
    const char* path;
    Json body;
    const char* field;
  } cases[] = {{"/v1/chat/completions", Chat(longer), "messages"},
               {"/v1/completions", Completion(longer), "prompt"},
               {"/v1/completions", Completion(Json::array({"Once", longer})), "prompt"},
               {"/v1/responses", Response(longer), "input"}};
  for (auto [path, body, field] : cases) {
    for (const bool stream : {false, true}) {
      body["stream"] = stream;
      const HttpAnswer answer = Post(path, body);
      EXPECT_EQ(answer.status, 400) << path;
      const Json error = answer.json()["error"];
      EXPECT_EQ(error["param"], field) << path;
      EXPECT_EQ(error["code"], "context_length_exceeded");
      const std::string message = error["message"];
      EXPECT_NE(message.find("maximum context length is 512 tokens"), message.npos) << message;
      EXPECT_NE(message.find("exceeds the context window"), message.npos) << message;
    }
  }
  const HttpAnswer anthropic = Post("/v1/messages", Chat(longer));
  EXPECT_EQ(anthropic.status, 400);
  EXPECT_EQ(anthropic.json()["error"]["type"], "invalid_request_error");
  const std::string message = anthropic.json()["error"]["message"];
  EXPECT_TRUE(message.starts_with("prompt is too long: ")) << message;
  EXPECT_TRUE(message.ends_with(" tokens > 511 maximum")) << message;
  for (const char* const path : {"/api/chat", "/api/generate"}) {
    Json body = Chat(longer);
    body["prompt"] = longer;
    const HttpAnswer ollama = Post(path, body);
    EXPECT_EQ(ollama.status, 400);
    EXPECT_NE(ollama.body.find("the input length exceeds the context length"), std::string::npos);
  }
}

TEST_F(OpenAiRequestsTest, ModelsHaveBothShapes) {
  const Json list = Get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["first_id"], "story");
  EXPECT_EQ(list["last_id"], "story");
  const Json model = Get("/v1/models/story").json();
  EXPECT_EQ(list["data"], Json::array({model}));
  EXPECT_EQ(model["id"], "story");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["type"], "model");
  EXPECT_EQ(model["display_name"], "story");
  EXPECT_TRUE(model["created"].is_number_integer());
  EXPECT_EQ(model["created_at"], "1970-01-01T00:00:00Z");
  for (const char* const name : {"context_length", "context_window", "max_model_len"}) {
    EXPECT_EQ(model[name], 512) << name;
  }
  EXPECT_EQ(model["max_input_tokens"], 511);
  EXPECT_EQ(model["meta"]["n_ctx"], 512);
  EXPECT_EQ(Get("/v1/models/story%3Alatest").json(), model);
  EXPECT_EQ(Get("/v1/models/st%2Fory").status, 404);
  EXPECT_EQ(Get("/v1/models/story", "DELETE").status, 405);
}

}  // namespace
}  // namespace kvcache::server::requests_test
