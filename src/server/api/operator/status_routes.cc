// Routes that say how the server is.
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "server/answer.h"

namespace kvcache::server {

using Reply = std::shared_ptr<HttpReply>;

namespace {

// The version of Ollama whose requests and answers are those of the routes here. Its clients ask for it before
// anything else, and refuse old ones. Later versions have log probabilities, which /api/chat has not.
constexpr const char* kOllamaVersion = "0.12.10";

}  // namespace

void Health(const ServerContext&, const Reply& reply) {
  SendJson(*reply, {{"status", "ok"}});
}

void Version(const ServerContext&, const Reply& reply) {
  SendJson(*reply, {{"version", kOllamaVersion}, {"kvcache", KVCACHE_VERSION}});
}

// Returns a model as clients of OpenAI and Anthropic read it, with its context by the names that llama.cpp, vLLM and
// others give it.
Json ModelJson(const ServerContext& context, const ServedModel& model) {
  Json json = {{"id", model.name},         {"object", "model"},
               {"type", "model"},          {"display_name", model.name},
               {"created", model.created}, {"created_at", OllamaTime(model.created)},
               {"owned_by", "kvcache"}};
  std::int64_t tokens = model.context;
  for (const LoadedModel& loaded : context.host.Loaded()) {
    if (loaded.model.key() == model.key()) tokens = loaded.lease->engine().context();
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

void Models(const ServerContext& context, const Reply& reply) {
  Json list = Json::array();
  for (const ServedModel& model : context.host.source().List()) {
    list.push_back(ModelJson(context, model));
  }
  const Json first = list.empty() ? Json() : list.front()["id"];
  const Json last = list.empty() ? Json() : list.back()["id"];
  SendJson(*reply, {{"object", "list"},
                    {"data", std::move(list)},
                    {"has_more", false},
                    {"first_id", first},
                    {"last_id", last}});
}

}  // namespace kvcache::server
