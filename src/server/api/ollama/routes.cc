#include "server/api/ollama/routes.h"

#include <utility>

#include "base/strings.h"
#include "server/api/ollama/models.h"
#include "server/output/delivery.h"
#include "server/output/stamps.h"
#include "server/request/asked_form.h"
#include "server/request/infill.h"
#include "server/request/messages.h"
#include "server/request/model_defaults.h"
#include "server/request/pictures.h"
#include "server/request/request_sampling.h"
#include "server/request/template_fields.h"
#include "server/request/tools.h"

namespace kvcache::server {
namespace {

enum class Kind { kChat, kText };

std::int64_t Nanoseconds(double milliseconds) {
  return static_cast<std::int64_t>(milliseconds * 1e6);
}

class OllamaShape final : public AnswerShape {
 public:
  OllamaShape(Kind kind, std::string model) : kind_(kind), model_(std::move(model)) {}

  std::string_view stream_type() const override { return "application/x-ndjson"; }
  std::string Delta(const AnswerPart& part) override {
    switch (part.kind) {
      case AnswerPart::Kind::kText: return Dump(Line({.text = part.text}, false)) + "\n";
      case AnswerPart::Kind::kReasoning: return Dump(Line({.reasoning = part.text}, false)) + "\n";
      case AnswerPart::Kind::kCall: return Dump(Line({.calls = {part.call}}, false)) + "\n";
    }
    return {};
  }
  std::string End(const TextResult& result) override { return Dump(Whole({}, result)) + "\n"; }

  Json Whole(const Answer& answer, const TextResult& result) override {
    Json line = Line(answer, true);
    line["done_reason"] = result.stop == StopReason::kLength ? "length" : "stop";
    line["total_duration"] = Nanoseconds(result.total_ms);
    line["load_duration"] = 0;
    line["prompt_eval_count"] = result.reuse.prompt;
    line["prompt_eval_cached_count"] = result.reuse.restored;
    line["prompt_eval_duration"] = Nanoseconds(result.first_token_ms);
    line["eval_count"] = result.generated;
    line["eval_duration"] = Nanoseconds(result.total_ms - result.first_token_ms);
    return line;
  }

 private:
  Json Line(const Answer& answer, bool done) {
    Json line = {{"model", model_}, {"created_at", UtcTime(UnixSeconds())}};
    if (kind_ == Kind::kChat) line["message"] = {{"role", "assistant"}, {"content", answer.text}};
    if (kind_ == Kind::kText) line["response"] = answer.text;
    Json& message = kind_ == Kind::kChat ? line["message"] : line;
    if (!answer.reasoning.empty()) message["thinking"] = answer.reasoning;
    for (const ToolCall& call : answer.calls) {
      message["tool_calls"].push_back(
          {{"id", NewId("call_")},
           {"function",
            {{"index", calls_++}, {"name", call.name}, {"arguments", call.arguments}}}});
    }
    line["done"] = done;
    return line;
  }

  Kind kind_;
  std::string model_;
  std::size_t calls_ = 0;
};

void Refuse(HttpReply& reply, const Status& status) {
  SendError(reply, Api::kOllama, FromStatus(status));
}

// Reads "options" into the request, with the form that they ask for.
Status ReadOptions(const ServedModel& model, Fields& fields, TextRequest& request) {
  static const Json kNone = Json::object();
  const Json* const given = fields.Find("options");
  Fields options(given != nullptr ? *given : kNone, "options.", &model.parameters);
  // Negative: as many as fit, and so is 0 in Ollama.
  const std::int64_t max = options.Integer("num_predict", -1, INT32_MIN, INT32_MAX);
  request.max_tokens = max > 0 ? static_cast<std::int32_t>(max) : -1;
  request.stop = options.Texts("stop", 16);
  request.sampling = ReadSampling(options);
  request.form = ReadAskedForm(options);
  return options.error();
}

void Generate(const RouteContext& context, Kind kind, Fields& fields, Result<Prompt> prompt,
              const Tools& tools, const Reply& reply) {
  const bool stream = fields.Bool("stream", true);
  TextRequest request;
  const AnswerForm own = ReadAskedForm(fields);
  const Status options = ReadOptions(context.model, fields, request);
  if (own != nullptr && request.form != nullptr) {
    fields.Fail("options", "and another field each give the answer a form; there can be one");
  }
  auto form = FormOf(tools, own != nullptr ? own : request.form);
  if (!fields.ok()) return Refuse(*reply, fields.error());
  if (!options.ok()) return Refuse(*reply, options);
  if (!form.ok()) return Refuse(*reply, form.status());
  request.form = std::move(*form);
  if (!prompt.ok()) return Refuse(*reply, prompt.status());
  request.prompt = std::move(*prompt);
  Deliver(context, request, stream, std::make_shared<OllamaShape>(kind, context.model.name), reply);
}

void RefuseUnsupported(Fields& fields) {
  fields.Refuse("context", "");
  if (const Json* const images = fields.Find("images"); images != nullptr && !images->empty()) {
    fields.Fail("images", "are not supported: the model reads text only; " + IgnoreImagesHint());
  }
  fields.Refuse("logprobs", false);
}

void OllamaChat(const RouteContext& context, const Json& body, const Reply& reply) {
  Fields fields(body);
  const Tools tools = ReadOllamaTools(fields, context.service.calls());
  ChatInput extra;
  ReadThink(fields, context.service.reasons(), extra);
  RefuseUnsupported(fields);
  if (!fields.ok()) return Refuse(*reply, fields.error());
  auto input = ReadMessages(fields.Has("messages") ? *fields.Find("messages") : Json());
  if (input.ok()) {
    input->tools = tools.list;
    input->variables = std::move(extra.variables);
  }
  Generate(context, Kind::kChat, fields,
           input.ok() ? RenderChat(context, std::move(*input)) : input.status(), tools, reply);
}

void OllamaGenerate(const RouteContext& context, const Json& body, const Reply& reply) {
  Fields fields(body);
  ChatInput input;
  ReadThink(fields, context.service.reasons(), input);
  fields.Refuse("tools");
  RefuseUnsupported(fields);
  const std::string prompt = fields.Text("prompt");
  const std::string system = fields.Text("system");
  const bool raw = fields.Bool("raw", false);
  const std::string suffix = fields.Text("suffix");
  fields.Refuse("template", "");
  if (!suffix.empty() && !CanInfill(context.service.engine())) fields.Fail("suffix", kNoInfill);
  if (fields.ok() && prompt.empty()) fields.Fail("prompt", "is missing or empty");
  if (!fields.ok()) return Refuse(*reply, fields.error());
  if (!suffix.empty()) {
    const InfillText text{.prefix = prompt, .suffix = suffix};
    return Generate(context, Kind::kText, fields, InfillPrompt(context.service.engine(), text), {},
                    reply);
  }
  if (raw) {
    return Generate(context, Kind::kText, fields, context.service.Encode(prompt), {}, reply);
  }
  if (!system.empty()) input.messages.push_back({{"role", "system"}, {"content", system}});
  input.messages.push_back({{"role", "user"}, {"content", prompt}});
  Generate(context, Kind::kText, fields, RenderChat(context, std::move(input)), {}, reply);
}

// A prompt is the message of a user, unless the request says "raw".
PromptUse UseOfPrompt(const Json& body) {
  return body.value("raw", Json()) == true ? PromptUse::kRaw : PromptUse::kMessage;
}

}  // namespace

std::vector<Route> OllamaRoutes() {
  return {
      {"POST", "/api/chat",
       WithModel{.run = OllamaChat, .stay_seconds = ReadKeepAlive, .only_loads = ChatOnlyLoads}},
      {"POST", "/api/generate",
       WithModel{.run = OllamaGenerate,
                 .prompt_use = UseOfPrompt,
                 .stay_seconds = ReadKeepAlive,
                 .only_loads = GenerateOnlyLoads}},
      {"POST", "/api/show", WithModel{.run = OllamaShow, .stay_seconds = ReadKeepAlive}},
      {"GET", "/api/tags", AtOnce{OllamaTags}},
      {"GET", "/api/ps", AtOnce{OllamaRunning}},
      {"GET", "/api/version", AtOnce{OllamaVersion}},
      {"POST", "/api/create", ChangesModels{OllamaCreate}},
      {"POST", "/api/copy", ChangesModels{OllamaCopy}},
      {"DELETE", "/api/delete", ChangesModels{OllamaDelete}},
  };
}

}  // namespace kvcache::server
