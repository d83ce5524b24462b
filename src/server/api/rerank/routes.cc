// Ranks of documents for a query, in the form of Jina's and Cohere's APIs, or of Text Embeddings Inference, whose field
// of documents is "texts".
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/arithmetic/activations.h"
#include "base/errors.h"
#include "base/longest_beginning.h"
#include "base/strings.h"
#include "json/float_text.h"
#include "server/api/routes.h"
#include "server/output/embedding_delivery.h"
#include "server/output/stamps.h"
#include "server/request/embedding_inputs.h"

namespace kvcache::server::rerank {
namespace {

// What Cohere's /v2/rerank reads of a document if a request does not say it.
constexpr std::int64_t kCohereDocumentTokens = 4096;

struct Asked {
  bool is_tei = false;  // the answer is Text Embeddings Inference's
  std::string query;
  std::vector<std::string> documents;
  std::size_t top = 0;                  // results at most
  std::size_t max_document_tokens = 0;  // 0: as many as fit
  bool returns_documents = false;
  bool gives_probabilities = false;  // instead of the scores that the model gives
  std::string version{};             // of Cohere's API

  const char* field() const { return is_tei ? "texts" : "documents"; }
};

// Reads texts, and objects with a text.
std::vector<std::string> ReadDocuments(Fields& fields, const char* field) {
  std::vector<std::string> documents;
  const Json* const given = fields.Find(field);
  if (given == nullptr || !given->is_array() || given->empty() ||
      given->size() > kMaxEmbeddingInputs) {
    fields.Fail(field, StrCat("must be an array of 1 to ", kMaxEmbeddingInputs,
                              " strings or objects with a 'text'"));
    return documents;
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const Json& one = (*given)[i];
    const Json text = one.is_object() ? one.value("text", Json()) : one;
    if (!text.is_string()) {
      fields.Fail(StrCat(field, "[", i, "]"), "must be a string or an object with a 'text'");
      return documents;
    }
    documents.push_back(text.get<std::string>());
  }
  return documents;
}

Asked ReadAsked(Fields& fields, const std::string& path) {
  Asked asked;
  asked.version = path == "/v2/rerank" ? "2" : "1";
  asked.is_tei = fields.Has("texts") && !fields.Has("documents");
  if (!fields.Has("query")) fields.Fail("query", "is missing");
  asked.query = fields.Text("query");
  if (fields.ok() && asked.query.empty()) fields.Fail("query", "is empty");
  asked.documents = ReadDocuments(fields, asked.field());
  const auto all = static_cast<std::int64_t>(asked.documents.size());
  asked.top = static_cast<std::size_t>(
      std::min(all, fields.Integer("top_n", all, 1, std::numeric_limits<std::int64_t>::max())));
  asked.max_document_tokens = static_cast<std::size_t>(
      fields.Integer("max_tokens_per_doc", asked.version == "2" ? kCohereDocumentTokens : 0, 1,
                     std::numeric_limits<std::int64_t>::max()));
  asked.returns_documents = fields.Bool(asked.is_tei ? "return_text" : "return_documents", false);
  asked.gives_probabilities = !fields.Bool("raw_scores", !asked.is_tei);
  return asked;
}

// Returns the beginning of a document of at most `max` tokens.
Result<std::string> Beginning(const Embedder& embedder, const std::string& document,
                              std::size_t max) {
  const auto count = [&](std::string_view text) -> Result<std::size_t> {
    KVCACHE_ASSIGN_OR_RETURN(const auto tokens, embedder.Tokenize(text, false));
    return tokens.size();
  };
  KVCACHE_ASSIGN_OR_RETURN(const std::size_t all, count(document));
  if (all <= max) return document;
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view kept,
                           LongestBeginning(document, 0, all, max, count));
  return std::string(kept);
}

// Returns what the model reads of the documents.
std::vector<std::string> ReadParts(const Embedder& embedder, Fields& fields, const Asked& asked) {
  if (asked.max_document_tokens == 0) return asked.documents;
  std::vector<std::string> parts;
  for (const std::string& document : asked.documents) {
    auto part = Beginning(embedder, document, asked.max_document_tokens);
    if (!part.ok()) fields.Fail(asked.field(), part.status().message());
    if (part.ok()) parts.push_back(std::move(*part));
  }
  return parts;
}

// Returns the score of a document, a probability if the request wants one.
float Shown(float score, const Asked& asked) {
  return asked.gives_probabilities ? arithmetic::Sigmoid(score) : score;
}

// Returns the answer of Text Embeddings Inference.
std::string TeiText(const Asked& asked, const std::vector<std::size_t>& order,
                    const std::vector<float>& scores) {
  std::string text = "[";
  for (const std::size_t index : order) {
    text += StrCat(text.size() > 1 ? "," : "", R"({"index":)", index, R"(,"score":)",
                   NumberText(Shown(scores[index], asked)));
    if (asked.returns_documents) text += StrCat(R"(,"text":)", Dump(asked.documents[index]));
    text += '}';
  }
  return text + "]";
}

// Returns the results, the most relevant first; of equal ones the first document.
std::string AnswerText(const std::string& model, const Asked& asked,
                       const EmbeddingResult& result) {
  const std::vector<float>& scores = result.values;
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(order.size(), asked.top));
  if (asked.is_tei) return TeiText(asked, order, scores);
  std::string text = StrCat(R"({"id":)", Dump(NewId("rerank-")), R"(,"object":"list","model":)",
                            Dump(model), R"(,"results":[)");
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t index = order[i];
    text += StrCat(i > 0 ? "," : "", R"({"index":)", index, R"(,"relevance_score":)",
                   NumberText(Shown(scores[index], asked)));
    if (asked.returns_documents) {
      text += StrCat(R"(,"document":)", Dump({{"text", asked.documents[index]}}));
    }
    text += '}';
  }
  const Json usage = {{"prompt_tokens", result.tokens}, {"total_tokens", result.tokens}};
  const Json meta = {{"api_version", {{"version", asked.version}}},
                     {"tokens", {{"input_tokens", result.tokens}, {"output_tokens", 0}}}};
  return text + StrCat(R"(],"usage":)", Dump(usage), R"(,"meta":)", Dump(meta), "}");
}

void Rerank(const EmbeddingContext& context, const Json& body) {
  Fields fields(body);
  const Embedder& embedder = context.service.embedder();
  if (!embedder.info().is_reranker) {
    return context.Refuse(
        InvalidArgument(StrCat(Quoted(context.model.name), " is not made for ranks")), "model");
  }
  Asked asked = ReadAsked(fields, context.path);
  // The scores of decoders are probabilities already.
  asked.gives_probabilities = asked.gives_probabilities && !embedder.info().is_causal;
  const bool truncates = fields.Bool("truncate", fields.Bool("truncation", true));
  EmbeddingInputs pairs;
  if (fields.ok()) {
    const std::vector<std::string> parts = ReadParts(embedder, fields, asked);
    pairs = EncodePairs(embedder, fields, asked.query, {asked.field(), parts},
                        truncates ? LongInput::kTruncate : LongInput::kRefuse);
  }
  if (!fields.ok()) return RefuseInputs(context, fields, pairs.too_long);
  DeliverEmbeddings(context, {.inputs = std::move(pairs.tokens), .ranks = true},
                    [name = context.model.name, asked = std::move(asked)](
                        const EmbeddingResult& result) { return AnswerText(name, asked, result); });
}

}  // namespace

std::vector<Route> Routes() {
  const WithEmbedder kind{.run = Rerank, .purpose = FilePurpose::kReranking};
  return {{"POST", "/v2/rerank", kind},
          {"POST", "/v1/rerank", kind},
          {"POST", "/rerank", kind},
          {"POST", "/v1/reranking", kind},  // llama.cpp's
          {"POST", "/reranking", kind}};
}

}  // namespace kvcache::server::rerank
