#include "server/request/embedding_inputs.h"

#include <utility>

#include "base/strings.h"

namespace kvcache::server {
namespace {

bool IsTokens(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

// Reads one input of a request, and counts its tokens.
class InputReader {
 public:
  InputReader(const Embedder& embedder, Fields& fields, const InputRules& rules)
      : embedder_(embedder), fields_(fields), rules_(rules) {}

  void Read(const std::string& name, const Json& value) {
    if (value.is_string()) return ReadText(name, value.get_ref<const std::string&>());
    if (rules_.takes_tokens && IsTokens(value)) return ReadTokens(name, value);
    fields_.Fail(
        name, rules_.takes_tokens ? "must be a string or an array of tokens" : "must be a string");
  }

  EmbeddingInputs Take() { return std::move(inputs_); }

 private:
  void ReadText(const std::string& name, const std::string& text) {
    if (text.empty() && !rules_.takes_empty) return fields_.Fail(name, "is empty");
    auto tokens = embedder_.EncodeInput(text, rules_.when_long);
    if (tokens.ok()) return Add(name, std::move(*tokens));
    inputs_.too_long = rules_.when_long == LongInput::kRefuse && fields_.ok() &&
                       embedder_.EncodeInput(text, LongInput::kTruncate).ok();
    fields_.Fail(name, "is refused: " + tokens.status().message());
  }

  void ReadTokens(const std::string& name, const Json& value) {
    std::vector<std::int32_t> tokens;
    tokens.reserve(value.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::int64_t token = IntegerOf(value[i]).value_or(-1);
      const int known = embedder_.info().vocabulary_size;
      if (token < 0 || token >= known) {
        return fields_.Fail(StrCat(name, "[", i, "]"),
                            StrCat("must be a token of the model, from 0 to ", known - 1));
      }
      tokens.push_back(static_cast<std::int32_t>(token));
    }
    const auto max = static_cast<std::size_t>(embedder_.info().max_input_tokens);
    if (tokens.size() > max && rules_.when_long == LongInput::kTruncate) tokens.resize(max);
    if (tokens.size() > max) {
      inputs_.too_long = fields_.ok();
      return fields_.Fail(name, StrCat("has ", tokens.size(), " tokens; must have at most ", max));
    }
    Add(name, std::move(tokens));
  }

  void Add(const std::string& name, std::vector<std::int32_t> tokens) {
    tokens_ += tokens.size();
    if (tokens_ > kMaxEmbeddingTokens) {
      return fields_.Fail(name, StrCat("brings the request's tokens to ", tokens_, "; at most ",
                                       kMaxEmbeddingTokens, " are computed at once"));
    }
    inputs_.tokens.push_back(std::move(tokens));
  }

  const Embedder& embedder_;
  Fields& fields_;
  const InputRules& rules_;
  EmbeddingInputs inputs_;
  std::size_t tokens_ = 0;
};

}  // namespace

EmbeddingInputs ReadEmbeddingInputs(const Embedder& embedder, Fields& fields,
                                    const InputRules& rules) {
  const Json* const given = fields.Find(rules.field);
  if (given == nullptr) {
    if (!rules.takes_empty) fields.Fail(rules.field, "is missing");
    return {};
  }
  InputReader reader(embedder, fields, rules);
  if (!given->is_array() || (rules.takes_tokens && IsTokens(*given))) {
    if (rules.takes_empty && *given == Json("")) return {};
    reader.Read(rules.field, *given);
    return reader.Take();
  }
  if ((given->empty() && !rules.takes_empty) || given->size() > kMaxEmbeddingInputs) {
    fields.Fail(rules.field,
                StrCat("has ", given->size(), " inputs; must have 1 to ", kMaxEmbeddingInputs));
    return {};
  }
  for (std::size_t i = 0; i < given->size() && fields.ok(); ++i) {
    reader.Read(StrCat(rules.field, "[", i, "]"), (*given)[i]);
  }
  return reader.Take();
}

int ReadDimensions(const Embedder& embedder, Fields& fields) {
  if (!fields.Has("dimensions")) return 0;
  const int all = embedder.info().dimensions;
  return static_cast<int>(fields.Integer("dimensions", all, 1, all));
}

EmbeddingInputs EncodePairs(const Embedder& embedder, Fields& fields, const std::string& query,
                            const NamedDocuments& documents, LongInput when_long) {
  EmbeddingInputs pairs;
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < documents.texts.size(); ++i) {
    const std::string name = StrCat(documents.field, "[", i, "]");
    auto pair = embedder.EncodePair(query, documents.texts[i], when_long);
    if (!pair.ok()) {
      // Documents are cut to what the query leaves; a query never is.
      const bool is_query =
          when_long == LongInput::kTruncate || !embedder.EncodePair(query, "", when_long).ok();
      fields.Fail(is_query ? "query" : name, "is refused: " + pair.status().message());
      return {.too_long = true};
    }
    tokens += pair->size();
    if (tokens > kMaxEmbeddingTokens) {
      fields.Fail(name, StrCat("brings the request's tokens to ", tokens, "; at most ",
                               kMaxEmbeddingTokens, " are computed at once"));
      return {};
    }
    pairs.tokens.push_back(std::move(*pair));
  }
  return pairs;
}

}  // namespace kvcache::server
