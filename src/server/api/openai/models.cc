#include "server/api/openai/models.h"

#include <cstdint>
#include <utility>

#include "server/http/url_text.h"
#include "server/output/stamps.h"

namespace kvcache::server::openai {
namespace {

// Returns what a model is for, in Ollama's words.
Json CapabilitiesOf(const ServedModel& model) {
  switch (model.purpose) {
    case FilePurpose::kEmbedding: return Json::array({"embedding"});
    case FilePurpose::kReranking: return Json::array({"rerank"});
    case FilePurpose::kGeneration: break;
  }
  return Json::array({"completion"});
}

// Returns a model as clients of OpenAI and Anthropic read it, with its context by the names that llama.cpp, vLLM and
// others give it.
Json ModelJson(const ServerContext& context, const ServedModel& model) {
  Json json = {{"id", model.name},         {"object", "model"},
               {"type", "model"},          {"display_name", model.name},
               {"created", model.created}, {"created_at", UtcTime(model.created)},
               {"owned_by", "kvcache"},    {"capabilities", CapabilitiesOf(model)}};
  if (!model.parent.empty()) json["parent"] = model.parent;
  std::int64_t tokens = model.context;
  for (const LoadedModel& loaded : context.host.Loaded()) {
    if (loaded.model.key() == model.key()) tokens = loaded.service->context();
  }
  if (tokens == 0) return json;
  for (const char* const name : {"context_length", "context_window", "max_model_len"}) {
    json[name] = tokens;
  }
  // The answer needs a place; it ends where the context does.
  json["max_input_tokens"] = tokens - 1;
  json["max_tokens"] = tokens - 1;
  json["meta"] = {{"n_ctx", tokens}, {"n_ctx_train", model.trained_context}, {"size", model.bytes}};
  return json;
}

}  // namespace

void Models(const ServerContext& context) {
  Json list = Json::array();
  for (const ServedModel& model : context.host.source().List()) {
    list.push_back(ModelJson(context, model));
  }
  const Json first = list.empty() ? Json() : list.front()["id"];
  const Json last = list.empty() ? Json() : list.back()["id"];
  context.Send({{"object", "list"},
                {"data", std::move(list)},
                {"has_more", false},
                {"first_id", first},
                {"last_id", last}});
}

void OneModel(const ServerContext& context) {
  const auto model = context.host.source().Find(PercentDecoded(context.parameter));
  if (!model.ok()) return context.RefuseModel(model.status());
  context.Send(ModelJson(context, *model));
}

}  // namespace kvcache::server::openai
