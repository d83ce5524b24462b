#include "model/graph/draft_head.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// Returns the token of each row of the head's output matrix.
Result<std::vector<std::int32_t>> ReadTokens(WeightReader& reader, std::int64_t vocabulary) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> ids,
                           reader.Integers(DraftHead::kTokens));
  const auto invalid = [](const auto&... what) {
    return Corrupt(StrCat("tensor '", DraftHead::kTokens, "' has ", what...));
  };
  const auto rows = static_cast<std::int64_t>(ids.size());
  if (rows < 1 || rows > vocabulary) {
    return invalid(rows, " tokens; must be 1 to ", vocabulary, ", those of the vocabulary");
  }
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> row_of_token(static_cast<std::size_t>(vocabulary), -1);
  for (const std::int64_t id : ids) {
    const auto row = static_cast<std::int64_t>(tokens.size());
    if (id < 0 || id >= vocabulary) {
      return invalid("token ", id, " in row ", row, "; must be 0 to ", vocabulary - 1);
    }
    std::int64_t& earlier = row_of_token[static_cast<std::size_t>(id)];
    if (earlier >= 0) {
      return invalid("token ", id, " in rows ", earlier, " and ", row,
                     "; each token may occur once");
    }
    earlier = row;
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  return tokens;
}

}  // namespace

Result<DraftHead> DraftHead::Load(WeightReader& reader, const LayerParams& params, int layer) {
  const std::string prefix = LayerPrefix(layer) + "nextn.";
  const std::int64_t size = params.hidden_size;
  const auto norm = [&](const char* name) {
    return reader.RmsNorm(prefix + name, size, params.norm_epsilon);
  };
  DraftHead head;
  KVCACHE_ASSIGN_OR_RETURN(head.embedding_norm, norm("enorm"));
  KVCACHE_ASSIGN_OR_RETURN(head.state_norm, norm("hnorm"));
  KVCACHE_ASSIGN_OR_RETURN(head.join, reader.Linear(prefix + "eh_proj", 2 * size, size));
  if (reader.Has(prefix + "shared_head_norm.weight")) {
    KVCACHE_ASSIGN_OR_RETURN(head.norm, norm("shared_head_norm"));
  } else if (const std::string last = LayerPrefix(layer) + "layer_output_norm";
             reader.Has(last + ".weight")) {
    KVCACHE_ASSIGN_OR_RETURN(head.norm, reader.RmsNorm(last, size, params.norm_epsilon));
  }
  if (reader.Has(prefix + "embed_tokens.weight")) {
    const std::int64_t rows = std::max(params.embedding_rows, params.vocabulary);
    KVCACHE_ASSIGN_OR_RETURN(head.embedding,
                             reader.Table(prefix + "embed_tokens.weight", size, rows));
  }
  KVCACHE_RETURN_IF_ERROR(head.LoadOutput(reader, params, prefix + "shared_head_head"));
  return head;
}

Status DraftHead::LoadOutput(WeightReader& reader, const LayerParams& params,
                             const std::string& name) {
  const bool has_output = reader.Has(name + ".weight");
  if (!reader.Has(kTokens)) {
    if (!has_output) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(output, reader.Linear(name, params.hidden_size, params.vocabulary));
    return Status::Ok();
  }
  if (!has_output) {
    return Corrupt(StrCat("tensor '", kTokens, "' has the tokens of the rows of '", name,
                          ".weight', which is missing"));
  }
  KVCACHE_ASSIGN_OR_RETURN(tokens, ReadTokens(reader, params.vocabulary));
  const auto rows = static_cast<std::int64_t>(tokens.size());
  auto loaded = reader.Linear(name, params.hidden_size, rows);
  if (!loaded.ok()) {
    return std::move(loaded).TakeStatus().WithContext(
        StrCat("'", kTokens, "' has ", rows, " tokens"));
  }
  output = std::move(*loaded);
  return Status::Ok();
}

void DraftHead::Join(Pass& pass, const TensorView& embedded, const TensorView& previous,
                     const TensorView& x) const {
  const std::int64_t size = x.dims[0];
  const Pass::Scope scope(pass);
  const TensorView both = pass.TakeHidden(2 * size);
  pass.RmsNorm(embedded, embedding_norm, pass.HeadsOf(both, 0, size, 1));
  pass.RmsNorm(previous, state_norm, pass.HeadsOf(both, size, size, 1));
  pass.Linear(both, {{join, x}});
}

}  // namespace kvcache
