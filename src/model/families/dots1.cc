// The dots1 and bailingmoe2 architectures (rednote's dots.llm1; Ling 2 and Ring 2 of inclusionAI): qwen3's
// attention, and experts as in DeepSeek V3. Sigmoids score the experts, a bias takes part in the choice,
// the first layers are dense, and some experts serve all tokens.
//
// Experts are chosen from the groups whose two best are the best; files of dots1 have one group.
// bailingmoe2 has one matrix for queries, keys and values, rotates a part of each head, and may have a draft
// head behind its last layer.
//
// Source: Huo et al., "dots.llm1" (2025); Ling Team, "Every activation boosted" (2025).
#include <algorithm>
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeDots1(ModelSource& source) {
  const bool bailing = source.name == "bailingmoe2";
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{.attention = {.norms = QkNorms::kHeads}, .can_have_head = bailing};
  ExpertParams& experts = blocks.experts;
  KVCACHE_ASSIGN_OR_RETURN(
      experts,
      ReadExpertParams(keys, params, {.sigmoid = true, .groups = true, .renormalize = false}));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  experts.selection_bias = true;
  experts.group_best = std::min(2, experts.count / experts.groups);
  KVCACHE_RETURN_IF_ERROR(ReadDenseAndShared(keys, params, &experts));
  if (bailing && keys.Has("expert_shared_feed_forward_length")) {
    KVCACHE_ASSIGN_OR_RETURN(const int each,
                             keys.IntOrZero("expert_shared_feed_forward_length", 1 << 23));
    if (each > 0) experts.shared_ffn = experts.shared_ffn / experts.ffn * each;
  }
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
