#include "model/graph/draft_head.h"

#include <algorithm>
#include <string>

#include "base/errors.h"

namespace kvcache {

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
  }
  if (reader.Has(prefix + "embed_tokens.weight")) {
    const std::int64_t rows = std::max(params.embedding_rows, params.vocabulary);
    KVCACHE_ASSIGN_OR_RETURN(head.embedding,
                             reader.Table(prefix + "embed_tokens.weight", size, rows));
  }
  if (reader.Has(prefix + "shared_head_head.weight")) {
    KVCACHE_ASSIGN_OR_RETURN(head.output,
                             reader.Linear(prefix + "shared_head_head", size, params.vocabulary));
  }
  return head;
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
