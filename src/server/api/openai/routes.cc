#include "server/api/routes.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/parse_number.h"
#include "base/strings.h"
#include "server/api/openai/embeddings.h"
#include "server/api/openai/models.h"
#include "server/api/openai/shape.h"
#include "server/output/delivery.h"
#include "server/output/stamps.h"
#include "server/request/asked_form.h"
#include "server/request/infill.h"
#include "server/request/model_defaults.h"
#include "server/request/request_sampling.h"
#include "server/request/template_fields.h"
#include "server/request/tools.h"

namespace kvcache::server::openai {
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
int ReadLogprobs(Fields& fields, Kind kind) {
  if (kind == Kind::kText) return static_cast<int>(fields.Integer("logprobs", -1, 0, 5));
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
    const std::int32_t token = ParseNumber<std::int32_t>(key).value_or(-1);
    const bool fits = value.is_number() && value >= -100 && value <= 100;
    if (token < 0 || token >= size || !fits) {
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

// Generates "n" answers to each prompt; the answers have the prompts' order.
void Generate(const RouteContext& context, Kind kind, TextRequest request,
              std::vector<Prompt> prompts, Fields& fields) {
  const bool stream = fields.Bool("stream", false);
  const bool include_usage = IncludesUsage(fields);
  const int max = std::max(1, kMaxChoices / static_cast<int>(prompts.size()));
  const auto choices = fields.Integer("n", 1, 1, std::min(max, 16));
  if (fields.Integer("best_of", choices, 1, INT32_MAX) > choices) {
    fields.Fail("best_of", "is larger than 'n'; that is not supported by this server");
  }
  request.stop = fields.Texts("stop", 16);
  request.sampling = ReadSampling(fields);
  request.sampling.logit_bias = ReadBiases(context, fields);
  request.top_logprobs = ReadLogprobs(fields, kind);
  if (!fields.ok()) return context.Refuse(fields);
  const AnswerSetup setup{.kind = kind,
                          .model = context.model.name,
                          .id = NewId(kind == Kind::kChat ? "chatcmpl-" : "cmpl-"),
                          .include_usage = include_usage,
                          .logprobs = request.top_logprobs >= 0};
  DeliverChoices(
      context,
      MakeChoices(std::move(request), std::move(prompts), choices,
                  [&](const Prompt& /*prompt*/, int index) { return MakeShape(setup, index); }),
      stream);
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

void Chat(const RouteContext& context, const Json& body) {
  Fields fields(body, "", &context.model.parameters);
  RefuseOfChat(fields);
  const Tools tools = ReadOpenAiTools(fields, context.service.dialect());
  const AnswerForm form = ReadAskedForm(fields);
  ChatInput input;
  input.tools = tools.list;
  ReadTemplateFields(fields, input);
  TextRequest request;
  request.max_tokens = ReadLimit(fields, {"n_predict", "max_tokens", "max_completion_tokens"},
                                 StoredMaxTokens(context.model));
  if (!fields.ok()) return context.Refuse(fields);
  auto prompt = RenderMessages(context, fields, std::move(input));
  if (!prompt.ok()) return context.Refuse(prompt.status(), "messages");
  SetCalls(tools, prompt->answer);
  auto whole = FormOf(tools, form);
  if (!whole.ok()) return context.Refuse(whole.status(), "tools");
  request.form = std::move(*whole);
  std::vector<Prompt> prompts;
  prompts.push_back(std::move(*prompt));
  Generate(context, Kind::kChat, std::move(request), std::move(prompts), fields);
}

void Completion(const RouteContext& context, const Json& body) {
  Fields fields(body, "", &context.model.parameters);
  fields.Refuse("echo", false);
  TextRequest request;
  request.form = ReadAskedForm(fields);
  request.max_tokens = ReadLimit(fields, {"n_predict", "max_tokens"}, 16);
  const std::string suffix = fields.Text("suffix");
  std::vector<Prompt> prompts =
      suffix.empty() ? ReadPrompts(context, fields) : ReadInfill(context, fields, suffix);
  if (!fields.ok()) return context.Refuse(fields);
  Generate(context, Kind::kText, std::move(request), std::move(prompts), fields);
}

}  // namespace

std::vector<Route> Routes() {
  return {
      {"GET", "/v1/models", AtOnce{Models}},
      {"GET", "/v1/models/{id...}", AtOnce{OneModel}},
      {"GET", "/models", AtOnce{Models}},
      {"POST", "/v1/chat/completions", WithModel{Chat}},
      {"POST", "/chat/completions", WithModel{Chat}},
      {"POST", "/v1/completions", WithModel{Completion}},
      {"POST", "/v1/embeddings", WithEmbedder{CreateEmbeddings}},
  };
}

}  // namespace kvcache::server::openai
