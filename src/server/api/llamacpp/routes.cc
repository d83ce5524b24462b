#include "server/api/routes.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "server/api/llamacpp/shape.h"
#include "server/output/delivery.h"
#include "server/request/adapters.h"
#include "server/request/asked_form.h"
#include "server/request/infill.h"
#include "server/request/model_defaults.h"
#include "server/request/request_sampling.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::server::llamacpp {
namespace {

// What llama.cpp has beyond the samplers that all routes refuse.
void RefuseUnsupported(Fields& fields) {
  fields.Refuse("post_sampling_probs", false);
  fields.Refuse("n_indent", 0);
}

// Returns the tokens that a key of logit_bias means: a number, or those of a text. None: it is no key.
std::vector<std::int32_t> BiasedTokens(const Engine& engine, const Json& key) {
  const auto known = [&](std::int64_t token) {
    const bool is_known = token >= 0 && token < engine.vocabulary_size();
    return is_known ? std::vector{static_cast<std::int32_t>(token)} : std::vector<std::int32_t>();
  };
  if (key.is_number()) return known(IntegerOf(key).value_or(-1));
  if (!key.is_string()) return {};
  const auto& text = key.get_ref<const std::string&>();
  const std::size_t digits = text.starts_with('-') ? 1 : 0;
  const bool is_number =
      text.size() > digits && text.find_first_not_of("0123456789", digits) == text.npos;
  if (is_number) return known(ParseNumber<std::int64_t>(text).value_or(-1));
  auto tokens = engine.Tokenize(text, TextPlace::kContinuation);
  return tokens.ok() ? std::move(*tokens) : std::vector<std::int32_t>();
}

// Reads [[token or text, bias or false], …], or an object of the same.
std::vector<LogitBias> ReadBiases(const Engine& engine, Fields& fields) {
  std::vector<LogitBias> biases;
  const Json* const given = fields.Find("logit_bias");
  if (given == nullptr) return biases;
  Json pairs = Json::array();
  if (given->is_object()) {
    for (const auto& [key, value] : given->items()) pairs.push_back(Json::array({key, value}));
  } else {
    pairs = *given;
  }
  for (const Json& pair : pairs) {
    const bool is_pair = pair.is_array() && pair.size() == 2;
    const std::vector<std::int32_t> tokens =
        is_pair ? BiasedTokens(engine, pair[0]) : std::vector<std::int32_t>();
    const bool fits = is_pair && (pair[1] == false || pair[1].is_number());
    if (!fits || tokens.empty()) {
      fields.Fail("logit_bias",
                  "must have pairs of a token of the model or a text, and a number or false");
      return {};
    }
    const float bias =
        pair[1] == false ? -100.0f : std::clamp(pair[1].get<float>(), -100.0f, 100.0f);
    for (const std::int32_t token : tokens) biases.push_back({token, bias});
  }
  return biases;
}

// A random seed is -1, also as 32 bits.
bool HasRandomSeed(const Json& body) {
  const Json seed = body.value("seed", Json());
  return seed == -1 || seed == 4294967295;
}

// Returns what "generation_settings" shows: what has an effect.
Json Settings(const Engine& engine, const TextRequest& request, bool stream) {
  const SamplingParams& sampling = request.sampling;
  return {{"n_ctx", engine.context()},
          {"n_predict", request.max_tokens},
          {"max_tokens", request.max_tokens},
          {"seed", sampling.seed},
          {"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repeat_penalty", sampling.repeat_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"stop", request.stop},
          {"stream", stream},
          {"n_probs", std::max(request.top_logprobs, 0)}};
}

std::vector<std::string> ReadStops(Fields& fields) {
  std::vector<std::string> stops;
  const Json* const given = fields.Find("stop");
  if (given == nullptr) return stops;
  for (const Json& stop : given->is_array() ? *given : Json::array({*given})) {
    if (!stop.is_string()) fields.Fail("stop", "must be an array of strings");
    if (stop.is_string() && !stop.get_ref<const std::string&>().empty()) stops.push_back(stop);
  }
  if (stops.size() > 64) fields.Fail("stop", "has more than 64 strings");
  return stops;
}

// Reads all but the prompt.
TextRequest ReadRequest(const RouteContext& context, Fields& fields, const Json& body) {
  RefuseUnsupported(fields);
  TextRequest request;
  const char* const name = fields.Has("n_predict") ? "n_predict" : "max_tokens";
  const std::int64_t max =
      fields.Integer(name, StoredMaxTokens(context.model), INT32_MIN, INT32_MAX);
  request.max_tokens = max < 0 ? -1 : static_cast<std::int32_t>(max);
  request.stop = ReadStops(fields);
  if (!fields.Has("stop")) request.stop = StoredStops(context.model);
  request.sampling = ReadSampling(fields);
  if (HasRandomSeed(body)) request.sampling.seed = RandomSeed();
  request.sampling.logit_bias = ReadBiases(context.service.engine(), fields);
  const auto probabilities = static_cast<int>(fields.Integer("n_probs", 0, 0, 100));
  request.top_logprobs = probabilities > 0 ? probabilities : -1;
  request.form = ReadAskedForm(fields);
  return request;
}

constexpr const char* kPromptRule =
    "'prompt' must be a string, an array of strings and tokens, or an array of such prompts";

// Appends a text or a token. The beginning of a sequence stands before a text at the beginning.
Status AppendPrompt(const Engine& engine, const Json& part, std::vector<std::int32_t>& tokens) {
  if (part.is_string()) {
    const TextPlace place = tokens.empty() ? TextPlace::kBeginning : TextPlace::kContinuation;
    KVCACHE_ASSIGN_OR_RETURN(const auto more, engine.Tokenize(part.get<std::string>(), place));
    tokens.insert(tokens.end(), more.begin(), more.end());
    return Status::Ok();
  }
  const bool is_token = part.is_number_integer() && part >= 0 && part < engine.vocabulary_size();
  if (!is_token) return InvalidArgument(kPromptRule);
  tokens.push_back(part.get<std::int32_t>());
  return Status::Ok();
}

Result<Prompt> OnePrompt(const TextService& service, const Json& given) {
  if (given.is_number()) return InvalidArgument(kPromptRule);
  Prompt prompt;
  const Json text = given.is_object() ? given.value("prompt_string", Json()) : given;
  if (given.is_object() && !given.value("multimodal_data", Json()).empty()) {
    return InvalidArgument("'prompt' has 'multimodal_data'; the model reads text only");
  }
  if (text.is_string()) {  // may have marks of pictures
    KVCACHE_ASSIGN_OR_RETURN(prompt, service.Encode(text.get_ref<const std::string&>()));
  } else {
    for (const Json& part : text.is_array() ? text : Json::array({text})) {
      KVCACHE_RETURN_IF_ERROR(AppendPrompt(service.engine(), part, prompt.tokens));
    }
  }
  if (!prompt.tokens.empty()) return prompt;
  return InvalidArgument("'prompt' is empty");
}

// An array of texts, objects and arrays is several prompts; one with tokens is a single prompt.
bool IsList(const Json& prompt) {
  return prompt.is_array() && std::none_of(prompt.begin(), prompt.end(),
                                           [](const Json& part) { return part.is_number(); });
}

Result<std::vector<Prompt>> ReadPrompts(const TextService& service, const Fields& fields) {
  constexpr std::size_t kMaxPrompts = 16;
  const Json* const given = fields.Find("prompt");
  if (given == nullptr) return InvalidArgument("'prompt' is missing");
  const Json list = IsList(*given) ? *given : Json::array({*given});
  if (list.empty() || list.size() > kMaxPrompts) {
    return InvalidArgument(
        StrCat("'prompt' has ", list.size(), " prompts; must have 1 to ", kMaxPrompts));
  }
  std::vector<Prompt> prompts;
  for (const Json& one : list) {
    KVCACHE_ASSIGN_OR_RETURN(Prompt prompt, OnePrompt(service, one));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

enum class Choices { kNone, kToo };

void Generate(const RouteContext& context, Fields& fields, const Json& body,
              Result<std::vector<Prompt>> prompts, Choices choices) {
  TextRequest request = ReadRequest(context, fields, body);
  const bool stream = fields.Bool("stream", false);
  const bool returns_tokens = fields.Bool("return_tokens", stream);
  const auto count = fields.Integer(fields.Has("n_cmpl") ? "n_cmpl" : "n", 1, 1, 16);
  if (!fields.ok()) return context.Refuse(fields);
  if (!prompts.ok()) return context.Refuse(prompts.status());
  const Engine& engine = context.service.engine();
  const Json settings = Settings(engine, request, stream);
  const bool has_probabilities = request.top_logprobs >= 0;
  const auto make_shape = [&](const Prompt& prompt, int index) {
    std::vector<std::int32_t> tokens = prompt.tokens;
    std::erase_if(tokens, [](std::int32_t token) { return token < 0; });  // cells of pictures
    const auto text = engine.Detokenize(tokens);
    return std::make_shared<Shape>(AnswerSetup{.model = context.model.name,
                                               .prompt = text.ok() ? *text : "",
                                               .settings = settings,
                                               .returns_tokens = returns_tokens,
                                               .has_probabilities = has_probabilities,
                                               .has_choices = choices == Choices::kToo},
                                   index);
  };
  DeliverChoices(context, MakeChoices(std::move(request), std::move(*prompts), count, make_shape),
                 stream);
}

std::string TextOf(const Engine& engine, std::int32_t token) {
  const Vocabulary& vocabulary = engine.tokenizer().vocabulary();
  return vocabulary.Has(token) ? std::string(vocabulary.text(token)) : "";
}

void SendProps(const ServerContext& context, const ServedModel& model, const TextService& service) {
  const Engine& engine = service.engine();
  const auto own = engine.file().GetStringOr("tokenizer.chat_template", "");
  TextRequest request{.sampling = {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f}};
  Json params = Settings(engine, request, true);
  params["seed"] = 4294967295;
  const bool has_tools = service.dialect()->has_calls();
  context.Send(
      {{"default_generation_settings",
        {{"id", 0},
         {"id_task", -1},
         {"n_ctx", engine.context()},
         {"is_processing", false},
         {"params", std::move(params)},
         {"prompt", ""}}},
       {"total_slots", engine.options().max_sequences},
       {"model_alias", model.name},
       {"model_path", model.name},
       {"modalities", {{"vision", false}, {"audio", false}}},
       {"endpoint_slots", true},
       {"endpoint_props", false},
       {"endpoint_metrics", true},
       {"chat_template",
        model.chat_template.empty() && own.ok() ? std::string(*own) : model.chat_template},
       {"chat_template_caps", {{"supports_tools", has_tools}, {"supports_tool_calls", has_tools}}},
       {"bos_token", TextOf(engine, engine.tokenizer().bos())},
       {"eos_token", TextOf(engine, engine.tokenizer().eos())},
       {"build_info", StrCat("kvcache-", KVCACHE_VERSION)},
       {"is_sleeping", false}});
}

Result<std::vector<InfillFile>> ReadExtra(const Fields& fields) {
  std::vector<InfillFile> files;
  const Json* const extra = fields.Find("input_extra");
  if (extra == nullptr) return files;
  const Status wrong =
      InvalidArgument("'input_extra' must be an array of objects with a 'text' and a 'filename'");
  if (!extra->is_array()) return wrong;
  for (const Json& file : *extra) {
    const Json text = file.is_object() ? file.value("text", Json()) : Json();
    const Json name = file.is_object() ? file.value("filename", Json("tmp")) : Json();
    if (!text.is_string() || !name.is_string()) return wrong;
    files.push_back({name.get<std::string>(), text.get<std::string>()});
  }
  return files;
}

// `kChoices`: whether there are OpenAI's fields beside llama.cpp's, because clients of both ask at the path.
template <Choices kChoices>
void Completion(const RouteContext& context, const Json& body) {
  Fields fields(body, "", &context.model.parameters);
  Generate(context, fields, body, ReadPrompts(context.service, fields), kChoices);
}

void Infill(const RouteContext& context, const Json& body) {
  Fields fields(body, "", &context.model.parameters);
  for (const char* name : {"input_prefix", "input_suffix"}) {
    if (!fields.Has(name)) fields.Fail(name, "is missing");
  }
  const auto read = [&]() -> Result<std::vector<Prompt>> {
    if (!context.pictures.empty()) return InvalidArgument("/infill takes no pictures");
    InfillText text{.prefix = fields.Text("input_prefix"),
                    .suffix = fields.Text("input_suffix"),
                    .begun = fields.Text("prompt")};
    KVCACHE_ASSIGN_OR_RETURN(text.extra, ReadExtra(fields));
    auto prompt = InfillPrompt(context.service.engine(), text);
    if (!prompt.ok()) return std::move(prompt).TakeStatus().WithContext("/infill");
    return std::vector<Prompt>{std::move(*prompt)};
  };
  Generate(context, fields, body, read(), Choices::kNone);
}

// Shows the model that was asked for last, or loads the first.
void Props(const ServerContext& context) {
  if (const auto loaded = context.host.LoadedToGenerate(); !loaded.empty()) {
    return SendProps(context, loaded.front().model, *loaded.front().lease);
  }
  const std::vector<ServedModel> models = context.host.source().List();
  const auto first = std::find_if(models.begin(), models.end(), [](const ServedModel& model) {
    return model.purpose == FilePurpose::kGeneration;
  });
  if (first == models.end()) {
    return context.Refuse({.status = 404, .message = "the server has no model that generates"});
  }
  context.host.Acquire(*first, std::nullopt,
                       [context, model = *first](const Result<ModelLease>& lease) {
                         if (!lease.ok()) return context.Refuse(lease.status());
                         SendProps(context, model, **lease);
                       });
}

// Calls `run` with the first model, whose adapters the command line names, and its service.
void WithFirstModel(const ServerContext& context,
                    const std::function<void(const ServedModel&, const ModelService&)>& run) {
  const std::vector<ServedModel> models = context.host.source().List();
  if (models.empty()) {
    return context.Refuse({.status = 404, .message = "the server has no model"});
  }
  ServedModel first = models.front();
  const auto run_with = [context, run, first](const auto& lease) {
    if (!lease.ok()) return context.Refuse(lease.status());
    run(first, **lease);
  };
  if (first.purpose == FilePurpose::kGeneration) {
    return context.host.Acquire(first, std::nullopt, run_with);
  }
  first.embeds = true;
  context.host.AcquireEmbedder(first, std::nullopt, run_with);
}

void ShowAdapters(const ServerContext& context) {
  WithFirstModel(context, [context](const ServedModel& model, const ModelService& service) {
    const std::vector<float> scales = service.scales()->Get();
    Json list = Json::array();
    for (std::size_t i = 0; i < scales.size(); ++i) {
      // As of models, the name is shown and no path of the machine.
      const std::string name = i < model.adapters.size() ? model.adapters[i].name : "";
      list.push_back({{"id", i}, {"path", name}, {"scale", scales[i]}});
    }
    context.Send(list);
  });
}

void ScaleAdapters(const ServerContext& context, const Json& body) {
  WithFirstModel(context, [context, body](const ServedModel&, const ModelService& service) {
    auto scales = ReadAdapterScales(service.adapters().size(), body, "the request");
    if (!scales.ok()) return context.Refuse(scales.status());
    service.scales()->Set(std::move(*scales));
    context.Send({{"success", true}});
  });
}

}  // namespace

std::vector<Route> Routes() {
  return {
      {"POST", "/completion", WithModel{Completion<Choices::kNone>}},
      {"POST", "/completions", WithModel{Completion<Choices::kToo>}},
      {"POST", "/infill", WithModel{Infill}},
      {"GET", "/props", AtOnce{Props}},
      {"GET", "/lora-adapters", AtOnce{ShowAdapters}, Audience::kAdministrators},
      {"POST", "/lora-adapters", ChangesModels{.run = ScaleAdapters, .takes_array = true},
       Audience::kAdministrators},
  };
}

}  // namespace kvcache::server::llamacpp
