#include "server/api/openai/routes.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/api/openai/models.h"
#include "server/api/openai/shape.h"
#include "server/output/delivery.h"
#include "server/output/stamps.h"
#include "server/request/asked_form.h"
#include "server/request/infill.h"
#include "server/request/messages.h"
#include "server/request/model_defaults.h"
#include "server/request/request_sampling.h"
#include "server/request/template_fields.h"
#include "server/request/tools.h"

namespace kvcache::server {
namespace {

constexpr std::size_t kMaxPrompts = 128;
constexpr int kMaxChoices = 512;  // of all prompts together

bool IncludesUsage(Fields& fields) {
  const Json* const options = fields.Find("stream_options");
  if (options == nullptr) return false;
  Fields inner(*options, "stream_options.");
  const bool include = inner.Bool("include_usage", false);
  if (!inner.ok()) fields.Fail("stream_options", "must be an object; 'include_usage' is a boolean");
  return include;
}

// Returns how many of the most likely tokens are wanted; -1: no logprobs.
int ReadLogprobs(Fields& fields, OpenAiKind kind) {
  if (kind == OpenAiKind::kText) return static_cast<int>(fields.Integer("logprobs", -1, 0, 5));
  const bool wanted = fields.Bool("logprobs", false);
  const auto top = static_cast<int>(fields.Integer("top_logprobs", 0, 0, 20));
  if (!wanted && top > 0) fields.Fail("top_logprobs", "needs 'logprobs'");
  return wanted ? top : -1;
}

// Reads an object from tokens' numbers to biases.
std::vector<LogitBias> ReadBiases(const RouteContext& context, Fields& fields) {
  std::vector<LogitBias> biases;
  const Json* const given = fields.Find("logit_bias");
  if (given == nullptr) return biases;
  if (!given->is_object()) fields.Fail("logit_bias", "must be an object");
  const std::int32_t size = context.service.engine().vocabulary_size();
  for (const auto& [key, value] : given->items()) {
    std::int32_t token = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool known =
        read.ec == std::errc() && read.ptr == key.data() + key.size() && token >= 0 && token < size;
    const bool fits = value.is_number() && value >= -100 && value <= 100;
    if (!known || !fits) {
      fields.Fail("logit_bias",
                  "must have tokens of the model as keys, and numbers from -100 to 100");
      return biases;
    }
    biases.push_back({token, value.get<float>()});
  }
  return biases;
}

void RefuseOfChat(Fields& fields) {
  fields.Refuse("functions");
  fields.RefuseUnless("function_call", {"none", "auto"});
  fields.Refuse("modalities", Json::array({"text"}));
  fields.Refuse("audio");
  fields.Refuse("web_search_options");
  fields.Refuse("echo", false);
}

// Reads the names that limits have, the ones of other servers first.
std::int32_t ReadLimit(Fields& fields, std::initializer_list<const char*> names,
                       std::int32_t fallback) {
  for (const char* const name : names) fallback = ReadMostTokens(fields, name, fallback);
  return fallback;
}

// Generates `choices` answers to each prompt; the answers have the prompts' order.
void Generate(const RouteContext& context, OpenAiKind kind, TextRequest request,
              std::vector<Prompt> prompts, Fields& fields, const Reply& reply) {
  const bool stream = fields.Bool("stream", false);
  const bool include_usage = IncludesUsage(fields);
  const int max = std::max(1, kMaxChoices / static_cast<int>(prompts.size()));
  const auto choices = static_cast<int>(fields.Integer("n", 1, 1, std::min(max, 16)));
  if (fields.Integer("best_of", choices, 1, INT32_MAX) > choices) {
    fields.Fail("best_of", "is larger than 'n'; that is not supported by this server");
  }
  request.stop = fields.Texts("stop", 16);
  request.sampling = ReadSampling(fields, -2.0);
  request.sampling.logit_bias = ReadBiases(context, fields);
  request.top_logprobs = ReadLogprobs(fields, kind);
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  const OpenAiAnswer answer{.kind = kind,
                            .model = context.model.name,
                            .id = NewId(kind == OpenAiKind::kChat ? "chatcmpl-" : "cmpl-"),
                            .include_usage = include_usage,
                            .logprobs = request.top_logprobs >= 0};
  std::vector<AnswerChoice> all;
  for (Prompt& prompt : prompts) {
    request.prompt = std::move(prompt);
    for (int i = 0; i < choices; ++i) {
      all.push_back({.request = request,
                     .shape = MakeOpenAiShape(answer, static_cast<int>(all.size())),
                     .counts_prompt = i == 0});
      // A prompt has the same texts alone and among others.
      all.back().request.sampling.seed += static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15;
    }
  }
  DeliverChoices(context, std::move(all), stream, reply);
}

// Returns the prompt that is a text or an array of tokens.
std::optional<Prompt> ReadPrompt(const RouteContext& context, Fields& fields,
                                 const std::string& name, const Json& value) {
  Prompt prompt;
  if (value.is_string()) {
    auto encoded = context.service.Encode(value.get_ref<const std::string&>());
    if (!encoded.ok()) fields.Fail(name, "is refused: " + encoded.status().message());
    if (!encoded.ok()) return std::nullopt;
    prompt = std::move(*encoded);
  } else if (!value.is_array()) {
    fields.Fail(name, "must be a string or an array of tokens");
    return std::nullopt;
  }
  const std::int32_t size = context.service.engine().vocabulary_size();
  for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
    const std::int64_t token = IntegerOf(value[i]).value_or(-1);
    if (token < 0 || token >= size) {
      fields.Fail(StrCat(name, "[", i, "]"), StrCat("must be a token, from 0 to ", size - 1));
      return std::nullopt;
    }
    prompt.tokens.push_back(static_cast<std::int32_t>(token));
  }
  if (prompt.tokens.empty()) fields.Fail(name, "has no tokens");
  return prompt;
}

// Returns the prompts of a completion: one, or an array of them.
std::vector<Prompt> ReadPrompts(const RouteContext& context, Fields& fields) {
  std::vector<Prompt> prompts;
  const Json* const given = fields.Find("prompt");
  const bool several = given != nullptr && given->is_array() &&
                       (given->empty() || given->front().is_string() || given->front().is_array());
  if (given == nullptr || (several && (given->empty() || given->size() > kMaxPrompts))) {
    fields.Fail("prompt", StrCat("must be a string, an array of tokens, or an array of 1 to ",
                                 kMaxPrompts, " of these"));
    return prompts;
  }
  for (std::size_t i = 0; i < (several ? given->size() : 1); ++i) {
    auto prompt = several ? ReadPrompt(context, fields, StrCat("prompt[", i, "]"), (*given)[i])
                          : ReadPrompt(context, fields, "prompt", *given);
    if (prompt) prompts.push_back(std::move(*prompt));
  }
  return prompts;
}

// Returns the prompt for what stands between a prompt and a suffix.
std::vector<Prompt> ReadInfill(const RouteContext& context, Fields& fields,
                               const std::string& suffix) {
  const Engine& engine = context.service.engine();
  if (!CanInfill(engine)) fields.Fail("suffix", kNoInfill);
  const std::string prefix = fields.Text("prompt");
  if (!fields.ok()) return {};
  auto prompt = InfillPrompt(engine, {.prefix = prefix, .suffix = suffix});
  if (!prompt.ok()) fields.Fail("suffix", "is refused: " + prompt.status().message());
  return prompt.ok() ? std::vector<Prompt>{std::move(*prompt)} : std::vector<Prompt>();
}

void OpenAiChat(const RouteContext& context, const Json& body, const Reply& reply) {
  Fields fields(body, "", &context.model.parameters);
  RefuseOfChat(fields);
  const Tools tools = ReadOpenAiTools(fields, context.service.calls());
  const AnswerForm form = ReadAskedForm(fields);
  ChatInput extra;
  ReadTemplateFields(fields, extra);
  TextRequest request;
  request.max_tokens = ReadLimit(fields, {"n_predict", "max_tokens", "max_completion_tokens"},
                                 StoredMaxTokens(context.model));
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  auto input = ReadMessages(fields.Has("messages") ? *fields.Find("messages") : Json());
  if (input.ok()) {
    input->tools = tools.list;
    input->variables = std::move(extra.variables);
    input->generation_prompt = extra.generation_prompt;
  }
  auto prompt = input.ok() ? RenderChat(context, std::move(*input)) : input.status();
  if (!prompt.ok()) {
    ApiError error = FromStatus(prompt.status());
    error.param = "messages";
    return SendError(*reply, Api::kOpenAi, error);
  }
  SetCalls(tools, prompt->answer);
  auto whole = FormOf(tools, form);
  if (!whole.ok()) {
    ApiError error = FromStatus(whole.status());
    error.param = "tools";
    return SendError(*reply, Api::kOpenAi, error);
  }
  request.form = std::move(*whole);
  std::vector<Prompt> prompts;
  prompts.push_back(std::move(*prompt));
  Generate(context, OpenAiKind::kChat, std::move(request), std::move(prompts), fields, reply);
}

void OpenAiCompletion(const RouteContext& context, const Json& body, const Reply& reply) {
  Fields fields(body, "", &context.model.parameters);
  fields.Refuse("echo", false);
  TextRequest request;
  request.form = ReadAskedForm(fields);
  request.max_tokens = ReadLimit(fields, {"n_predict", "max_tokens"}, 16);
  const std::string suffix = fields.Text("suffix");
  std::vector<Prompt> prompts =
      suffix.empty() ? ReadPrompts(context, fields) : ReadInfill(context, fields, suffix);
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  Generate(context, OpenAiKind::kText, std::move(request), std::move(prompts), fields, reply);
}

}  // namespace

std::vector<Route> OpenAiRoutes() {
  return {
      {"GET", "/v1/models", AtOnce{Models}},
      {"GET", "/v1/models/{id...}", AtOnce{OneModel}},
      {"GET", "/models", AtOnce{Models}},
      {"POST", "/v1/chat/completions", WithModel{OpenAiChat}},
      {"POST", "/chat/completions", WithModel{OpenAiChat}},
      {"POST", "/v1/completions", WithModel{OpenAiCompletion}},
  };
}

}  // namespace kvcache::server
