#include "embedding/pooled_embedder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "embedding/embedding_keys.h"

namespace kvcache {
namespace {

struct BeforeInOrder {
  bool operator()(std::span<const std::int32_t> a, std::span<const std::int32_t> b) const {
    return std::ranges::lexicographical_compare(a, b);
  }
};

// `values` are those of the inputs one after another, of each `vectors[i]` times `size`. The first input has the index
// `first`.
Status CheckFinite(std::span<const float> values, std::span<const std::size_t> vectors,
                   std::size_t size, std::size_t first) {
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const std::span<const float> of_input = values.first(vectors[i] * size);
    values = values.subspan(of_input.size());
    const auto wrong =
        std::ranges::find_if_not(of_input, [](float value) { return std::isfinite(value); });
    if (wrong == of_input.end()) continue;
    return Corrupt(
        StrCat("input ", first + i,
               ": a value of its result is not finite: the model's weights are damaged"));
  }
  return Status::Ok();
}

}  // namespace

Status PooledEmbedder::Describe(const GgufFile& file, Model& model, const Tokenizer& tokenizer,
                                const EmbedderOptions& options, int max_input_tokens) {
  model_ = &model;
  tokenizer_ = &tokenizer;
  const ModelInfo& of_model = model.info();
  KVCACHE_RETURN_IF_ERROR(CheckTokenCount(of_model, tokenizer.vocabulary_size()));
  KVCACHE_ASSIGN_OR_RETURN(info_.pooling, ChoosePooling(file, options.pooling));
  info_.architecture = of_model.architecture;
  info_.name = of_model.name;
  info_.is_reranker = info_.pooling == Pooling::kRank;
  info_.is_causal = !of_model.is_encoder;
  info_.max_input_tokens = max_input_tokens;
  info_.vocabulary_size = of_model.embedding_rows;
  info_.parameters = of_model.parameters;
  info_.dimensions = model.embedding()->head_outputs();
  if (info_.is_reranker && !model.embedding()->has_scores()) {
    return Unsupported(
        StrCat("the file's pooling is rank, but it has no tensor 'cls.output.weight'"));
  }
  KVCACHE_ASSIGN_OR_RETURN(InputTexts texts, InputTexts::Make(file, tokenizer, max_input_tokens));
  texts_ = std::make_unique<InputTexts>(std::move(texts));
  return Status::Ok();
}

Result<std::vector<std::int32_t>> PooledEmbedder::EncodeInput(std::string_view text,
                                                              LongInput when_long) const {
  return texts_->Encode(text, when_long);
}

Result<std::vector<std::int32_t>> PooledEmbedder::EncodePair(std::string_view query,
                                                             std::string_view document,
                                                             LongInput when_long) const {
  if (!info_.is_reranker) return Unsupported("the model is no reranker: its pooling is not rank");
  return texts_->EncodePair(query, document, when_long);
}

Result<std::vector<std::int32_t>> PooledEmbedder::Tokenize(std::string_view text,
                                                           bool with_special) const {
  const AddToken add = with_special ? AddToken::kPerFile : AddToken::kNo;
  return tokenizer_->Encode(text, {.add_bos = add, .add_eos = add});
}

Result<std::string> PooledEmbedder::Detokenize(std::span<const std::int32_t> tokens) const {
  return tokenizer_->Decode(tokens);
}

std::string PooledEmbedder::Piece(std::int32_t token) const {
  return tokenizer_->Piece(token, ControlText::kShown);
}

Pooling PooledEmbedder::StatesPooling() const {
  if (!info_.is_reranker) return info_.pooling;
  if (model_->embedding()->head_reads_mean()) return Pooling::kMean;
  return info_.is_causal ? Pooling::kLast : Pooling::kCls;
}

Status PooledEmbedder::CheckInputs(InputTokens inputs, std::size_t first) const {
  const int rows = model_->info().embedding_rows;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].empty()) return InvalidArgument(StrCat("input ", first + i, " has no tokens"));
    if (std::ssize(inputs[i]) > info_.max_input_tokens) {
      return InvalidArgument(StrCat("input ", first + i, " has ", inputs[i].size(),
                                    " tokens; the model reads at most ", info_.max_input_tokens));
    }
    for (const std::int32_t token : inputs[i]) {
      if (token >= 0 && token < rows) continue;
      return InvalidArgument(
          StrCat("input ", first + i, ": token ", token, " is not in the vocabulary of ", rows));
    }
  }
  return Status::Ok();
}

Result<PooledEmbedder::Pooled> PooledEmbedder::ComputeDistinct(InputTokens inputs,
                                                               const EmbedOptions& options) {
  std::map<std::span<const std::int32_t>, std::size_t, BeforeInOrder> known;
  std::vector<std::size_t> place;  // of each input among the distinct ones
  std::vector<std::vector<std::int32_t>> distinct;
  for (const std::vector<std::int32_t>& input : inputs) {
    const auto [at, is_new] = known.try_emplace(input, distinct.size());
    if (is_new) distinct.push_back(input);
    place.push_back(at->second);
  }
  KVCACHE_ASSIGN_OR_RETURN(Pooled pooled, Compute(distinct, StatesPooling(), options));
  if (distinct.size() == inputs.size()) return pooled;
  std::vector<PooledStates> states;
  for (const std::size_t each : place) states.push_back(pooled.states[each]);
  pooled.states = std::move(states);
  return pooled;
}

Result<std::vector<float>> PooledEmbedder::HeadValues(std::span<const float> vectors,
                                                      AdapterUses adapters) {
  const std::size_t count = vectors.size() / static_cast<std::size_t>(model_->info().hidden_size);
  std::vector<float> values(count * static_cast<std::size_t>(info_.dimensions));
  KVCACHE_RETURN_IF_ERROR(model_->embedding()->RunHead(vectors.data(), static_cast<int>(count),
                                                       adapters, values.data()));
  return values;
}

Result<Embeddings> PooledEmbedder::EmbedChecked(InputTokens inputs, const EmbedOptions& options) {
  KVCACHE_ASSIGN_OR_RETURN(const Pooled pooled, ComputeDistinct(inputs, options));
  const auto size = static_cast<std::size_t>(info_.dimensions);
  const auto kept = options.dimensions == 0 ? size : static_cast<std::size_t>(options.dimensions);
  Embeddings result;
  result.dimensions = static_cast<int>(kept);
  std::vector<float> vectors;
  for (const PooledStates& states : pooled.states) {
    const std::vector<float> of_input = states.Vectors();
    vectors.insert(vectors.end(), of_input.begin(), of_input.end());
    result.vectors.push_back(of_input.size() /
                             static_cast<std::size_t>(model_->info().hidden_size));
    result.tokens += states.tokens();
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> values, HeadValues(vectors, options.adapters));
  KVCACHE_RETURN_IF_ERROR(CheckFinite(values, result.vectors, size, options.first_input));
  result.values = FinishVectors(values, size, kept, options.normalize);
  result.reused_tokens = result.tokens - pooled.computed_tokens;
  return result;
}

Result<Embeddings> PooledEmbedder::Embed(InputTokens inputs, const EmbedOptions& options) {
  if (info_.is_reranker) {
    return Unsupported("the model is a reranker: it scores documents and has no embeddings");
  }
  if (options.dimensions < 0 || options.dimensions > info_.dimensions) {
    return InvalidArgument(StrCat("dimensions is ", options.dimensions, "; must be 1 to ",
                                  info_.dimensions, ", or 0 for all"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckInputs(inputs, options.first_input));
  return Guarded("no memory for embeddings", [&]() -> Result<Embeddings> {
    EmbedOptions normal = options;
    KVCACHE_ASSIGN_OR_RETURN(normal.adapters, NormalAdapters(options.adapters));
    return EmbedChecked(inputs, normal);
  });
}

Result<Ranks> PooledEmbedder::RankChecked(InputTokens pairs, const EmbedOptions& options) {
  KVCACHE_ASSIGN_OR_RETURN(const Pooled pooled, ComputeDistinct(pairs, options));
  Ranks ranks;
  std::vector<float> vectors;
  for (const PooledStates& states : pooled.states) {
    const std::vector<float> of_pair = states.Vectors();
    vectors.insert(vectors.end(), of_pair.begin(), of_pair.end());
    ranks.tokens += states.tokens();
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> values, HeadValues(vectors, options.adapters));
  const auto size = static_cast<std::size_t>(info_.dimensions);
  const std::vector<std::size_t> one_each(pairs.size(), 1);
  KVCACHE_RETURN_IF_ERROR(CheckFinite(values, one_each, size, options.first_input));
  for (std::size_t i = 0; i < values.size(); i += size) {
    ranks.scores.push_back(values[i]);
  }
  ranks.reused_tokens = ranks.tokens - pooled.computed_tokens;
  return ranks;
}

Result<Ranks> PooledEmbedder::Rank(InputTokens pairs, const EmbedOptions& options) {
  if (!info_.is_reranker) return Unsupported("the model is no reranker: its pooling is not rank");
  KVCACHE_RETURN_IF_ERROR(CheckInputs(pairs, options.first_input));
  return Guarded("no memory for scores", [&]() -> Result<Ranks> {
    EmbedOptions normal = options;
    KVCACHE_ASSIGN_OR_RETURN(normal.adapters, NormalAdapters(options.adapters));
    return RankChecked(pairs, normal);
  });
}

}  // namespace kvcache
