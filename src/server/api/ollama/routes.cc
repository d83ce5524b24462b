#include "server/api/routes.h"

#include <utility>

#include "base/strings.h"
#include "server/api/ollama/embed.h"
#include "server/api/ollama/models.h"
#include "server/output/delivery.h"
#include "server/output/stamps.h"
#include "server/request/asked_form.h"
#include "server/request/infill.h"
#include "server/request/model_defaults.h"
#include "server/request/pictures.h"
#include "server/request/request_sampling.h"
#include "server/request/template_fields.h"
#include "server/request/tools.h"

namespace kvcache::server::ollama {
namespace {

std::int64_t Nanoseconds(double milliseconds) {
  return static_cast<std::int64_t>(milliseconds * 1e6);
}

class Shape final : public AnswerShape {
 public:
  Shape(Kind kind, std::string model) : kind_(kind), model_(std::move(model)) {}

  std::string_view stream_type() const override { return "application/x-ndjson"; }
  std::string Delta(const AnswerPart& part) override {
    switch (part.kind) {
      case AnswerPart::Kind::kText: return Dump(Line({.text = part.text}, false)) + "\n";
      case AnswerPart::Kind::kReasoning: return Dump(Line({.reasoning = part.text}, false)) + "\n";
      case AnswerPart::Kind::kCallBegin:
      case AnswerPart::Kind::kCallArguments: return {};
      case AnswerPart::Kind::kCallEnd:
        return Dump(Line({.calls = {{.call = part.call}}}, false)) + "\n";
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
    for (const auto& [call, written] : answer.calls) {
      message["tool_calls"].push_back(
          {{"id", CallId(call, "call_")},
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

void Answer(const RouteContext& context, Kind kind, Fields& fields, Result<Prompt> prompt,
            const Tools& tools = {}) {
  const bool stream = fields.Bool("stream", true);
  TextRequest request;
  const AnswerForm own = ReadAskedForm(fields);
  const Status options = ReadOptions(context.model, fields, request);
  if (own != nullptr && request.form != nullptr) {
    fields.Fail("options", "and another field each give the answer a form; there can be one");
  }
  auto form = FormOf(tools, own != nullptr ? own : request.form);
  for (const Status& status : {fields.error(), options, form.status(), prompt.status()}) {
    if (!status.ok()) return context.Refuse(status);
  }
  request.form = std::move(*form);
  request.prompt = std::move(*prompt);
  Deliver(context, std::move(request), stream, std::make_shared<Shape>(kind, context.model.name));
}

void RefuseUnsupported(Fields& fields) {
  fields.Refuse("context", "");
  if (const Json* const images = fields.Find("images"); images != nullptr && !images->empty()) {
    fields.Fail("images", "are not supported: the model reads text only; " + IgnoreImagesHint());
  }
  fields.Refuse("logprobs", false);
}

void Chat(const RouteContext& context, const Json& body) {
  Fields fields(body);
  const Tools tools = ReadOllamaTools(fields, context.service.dialect());
  ChatInput input;
  input.tools = tools.list;
  ReadThink(fields, context.service.reasons(), input);
  RefuseUnsupported(fields);
  if (!fields.ok()) return context.Refuse(fields);
  Answer(context, Kind::kChat, fields, RenderMessages(context, fields, std::move(input)), tools);
}

void Generate(const RouteContext& context, const Json& body) {
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
  if (!fields.ok()) return context.Refuse(fields);
  if (!suffix.empty()) {
    const InfillText text{.prefix = prompt, .suffix = suffix};
    return Answer(context, Kind::kText, fields, InfillPrompt(context.service.engine(), text));
  }
  if (raw) return Answer(context, Kind::kText, fields, context.service.Encode(prompt));
  if (!system.empty()) input.messages.push_back({{"role", "system"}, {"content", system}});
  input.messages.push_back({{"role", "user"}, {"content", prompt}});
  Answer(context, Kind::kText, fields, RenderChat(context, std::move(input)));
}

// A prompt is the message of a user, unless the request says "raw".
PromptUse UseOfPrompt(const Json& body) {
  return body.value("raw", Json()) == true ? PromptUse::kRaw : PromptUse::kMessage;
}

}  // namespace

std::vector<Route> Routes() {
  return {
      {"POST", "/api/chat",
       WithModel{.run = Chat, .stay_seconds = ReadKeepAlive, .only_loads = OnlyLoads<Kind::kChat>}},
      {"POST", "/api/generate",
       WithModel{.run = Generate,
                 .prompt_use = UseOfPrompt,
                 .stay_seconds = ReadKeepAlive,
                 .only_loads = OnlyLoads<Kind::kText>}},
      {"POST", "/api/embed",
       WithEmbedder{.run = Embed, .stay_seconds = ReadKeepAlive, .only_loads = LetsEmbedderGo}},
      {"POST", "/api/embeddings",
       WithEmbedder{.run = EmbedOne, .stay_seconds = ReadKeepAlive, .only_loads = LetsEmbedderGo}},
      {"POST", "/api/show",
       WithModel{.run = ShowModel, .stay_seconds = ReadKeepAlive, .without_text = ShowEmbedder}},
      {"GET", "/api/tags", AtOnce{ListModels}},
      {"GET", "/api/ps", AtOnce{ListLoaded}},
      {"GET", "/api/version", AtOnce{ShowVersion}},
      {"POST", "/api/create", ChangesModels{CreateModel}},
      {"POST", "/api/copy", ChangesModels{CopyModel}},
      {"POST", "/api/pull", ChangesModels{.run = PullModel, .takes_long = true}},
      {"DELETE", "/api/delete", ChangesModels{DeleteModel}},
  };
}

}  // namespace kvcache::server::ollama
