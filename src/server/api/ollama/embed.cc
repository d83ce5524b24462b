#include "server/api/ollama/embed.h"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "base/strings.h"
#include "json/float_text.h"
#include "server/api/ollama/models.h"
#include "server/output/embedding_delivery.h"
#include "server/request/embedding_inputs.h"

namespace kvcache::server::ollama {
namespace {

std::int64_t InNanoseconds(double milliseconds) {
  return static_cast<std::int64_t>(milliseconds * 1e6);
}

std::string EmbedText(const std::string& model, double load_ms, const EmbeddingResult& result) {
  const auto size = static_cast<std::size_t>(result.dimensions);
  std::string text = StrCat(R"({"model":)", Dump(model), R"(,"embeddings":[)");
  for (std::size_t i = 0; i * size < result.values.size(); ++i) {
    if (i > 0) text += ',';
    text += VectorText(std::span(result.values).subspan(i * size, size));
  }
  return text + StrCat(R"(],"total_duration":)", InNanoseconds(load_ms + result.total_ms),
                       R"(,"load_duration":)", InNanoseconds(load_ms), R"(,"prompt_eval_count":)",
                       result.tokens, "}");
}

// Returns the dimensions that are asked for; 0: all. As in Ollama, numbers that shorten no vector have no effect.
int AskedDimensions(const Embedder& embedder, Fields& fields) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t asked = fields.Integer("dimensions", 0, -kMost, kMost);
  return asked > 0 && asked < embedder.info().dimensions ? static_cast<int>(asked) : 0;
}

// Submits the inputs; without one, answers at once.
void AnswerInputs(const EmbeddingContext& context, EmbeddingRequest request,
                  std::function<std::string(const EmbeddingResult&)> write) {
  if (request.inputs.empty()) return context.reply->Send(200, write({}));
  DeliverEmbeddings(context, std::move(request), std::move(write));
}

}  // namespace

void Embed(const EmbeddingContext& context, const Json& body) {
  Fields fields(body);
  const Embedder& embedder = context.service.embedder();
  EmbeddingRequest request;
  request.dimensions = AskedDimensions(embedder, fields);
  const bool truncates = fields.Bool("truncate", true);
  EmbeddingInputs inputs;
  if (fields.ok()) {
    inputs = ReadEmbeddingInputs(
        embedder, fields,
        {.takes_empty = true, .when_long = truncates ? LongInput::kTruncate : LongInput::kRefuse});
  }
  if (!fields.ok()) return RefuseInputs(context, fields, inputs.too_long);
  request.inputs = std::move(inputs.tokens);
  AnswerInputs(context, std::move(request),
               [name = context.model.name, load_ms = context.load_ms](
                   const EmbeddingResult& result) { return EmbedText(name, load_ms, result); });
}

void EmbedOne(const EmbeddingContext& context, const Json& body) {
  Fields fields(body);
  (void)fields.Text("prompt");  // one text, and no array
  EmbeddingInputs inputs;
  if (fields.ok()) {
    inputs = ReadEmbeddingInputs(
        context.service.embedder(), fields,
        {.field = "prompt", .takes_empty = true, .when_long = LongInput::kTruncate});
  }
  if (!fields.ok()) return RefuseInputs(context, fields, inputs.too_long);
  // The older route gives vectors as the model makes them.
  AnswerInputs(context, {.inputs = std::move(inputs.tokens), .normalize = false},
               [](const EmbeddingResult& result) {
                 return StrCat(R"({"embedding":)", VectorText(result.values), "}");
               });
}

bool LetsEmbedderGo(const ServerContext& context, const ServedModel& model, const Json& body) {
  const Fields fields(body);
  if (fields.Has("input") || fields.Has("prompt")) return false;
  const auto stay = ReadKeepAlive(body);
  if (!stay.ok() || *stay != 0.0 || !context.user.is_admin) return false;
  context.host.Unload(model);
  const bool is_older = context.path == "/api/embeddings";
  context.reply->Send(200, is_older ? R"({"embedding":[]})" : EmbedText(model.name, 0.0, {}));
  return true;
}

}  // namespace kvcache::server::ollama
