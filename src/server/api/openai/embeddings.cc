#include "server/api/openai/embeddings.h"

#include <span>
#include <string>
#include <utility>

#include "base/strings.h"
#include "json/float_text.h"
#include "server/output/embedding_delivery.h"
#include "server/request/embedding_inputs.h"

namespace kvcache::server::openai {
namespace {

std::string AnswerText(const std::string& model, const EmbeddingResult& result, bool is_base64) {
  const auto size = static_cast<std::size_t>(result.dimensions);
  std::string text = R"({"object":"list","data":[)";
  for (std::size_t i = 0; i * size < result.values.size(); ++i) {
    const auto vector = std::span(result.values).subspan(i * size, size);
    text += StrCat(i > 0 ? "," : "", R"({"object":"embedding","index":)", i, R"(,"embedding":)");
    text += is_base64 ? StrCat("\"", Base64Text(vector), "\"}") : VectorText(vector) + "}";
  }
  const Json usage = {{"prompt_tokens", result.tokens}, {"total_tokens", result.tokens}};
  return text + StrCat(R"(],"model":)", Dump(model), R"(,"usage":)", Dump(usage), "}");
}

}  // namespace

void CreateEmbeddings(const EmbeddingContext& context, const Json& body) {
  Fields fields(body);
  const Embedder& embedder = context.service.embedder();
  EmbeddingRequest request;
  const std::string format = fields.Text("encoding_format", "float");
  if (format != "float" && format != "base64") {
    fields.Fail("encoding_format", "must be \"float\" or \"base64\"");
  }
  request.dimensions = ReadDimensions(embedder, fields);
  EmbeddingInputs inputs;
  if (fields.ok()) inputs = ReadEmbeddingInputs(embedder, fields, {.takes_tokens = true});
  if (!fields.ok()) return RefuseInputs(context, fields, inputs.too_long);
  request.inputs = std::move(inputs.tokens);
  DeliverEmbeddings(
      context, std::move(request),
      [name = context.model.name, is_base64 = format == "base64"](const EmbeddingResult& result) {
        return AnswerText(name, result, is_base64);
      });
}

}  // namespace kvcache::server::openai
