// The qwen2 architecture (Qwen 1.5, 2 and 2.5): llama's layers with biases on q, k and v. RoPE
// rotates pairs from the two halves of a head instead of neighbouring values.
//
// A window in a file (attention.sliding_window) has no effect: the published models state one, but
// switch it off with use_sliding_window.
//
// qwen2vl (Qwen2-VL and 2.5-VL) rotates by three axes: the first pairs by time, the next ones by row, the last ones by
// column (rope.dimension_sections). They are equal for text.
//
// seed_oss (ByteDance's Seed-OSS) has the same layers. Its feed-forward norm is named post_attention_norm, and
// the output of attention may have a bias.
//
// Source: Yang et al., "Qwen2 technical report" (2024); transformers' modeling_seed_oss.
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

Result<std::vector<std::uint8_t>> ReadAxes(KeyReader& keys, std::size_t pairs) {
  constexpr std::string_view kKey = "rope.dimension_sections";
  KVCACHE_ASSIGN_OR_RETURN(const GgufInts sections, keys.Ints(kKey));
  std::vector<std::uint8_t> axes;
  std::uint8_t axis = 0;
  for (const std::int64_t size : sections) {
    const bool fits = size >= 0 && size <= static_cast<std::int64_t>(pairs - axes.size());
    if (!fits || (size > 0 && axis > 2)) return keys.Unsupported(kKey);
    axes.insert(axes.end(), static_cast<std::size_t>(size), axis++);
  }
  if (axes.size() != pairs) return keys.Unsupported(kKey);
  return axes;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeQwen2(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  BlockParams blocks{.attention = {.bias = Bias::kRequired}, .can_have_head = true};
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  if (source.name == "qwen2vl") {
    if (blocks.rope.magnitude != 1.0f) return source.keys.Unsupported("rope.scaling.type");
    KVCACHE_ASSIGN_OR_RETURN(params.rope_axes, ReadAxes(source.keys, blocks.rope.inv_freq.size()));
  }
  source.keys.Ignore("attention.sliding_window");
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

Result<std::unique_ptr<Decoder>> MakeSeedOss(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent},
                     .ffn_norm = "post_attention_norm"};
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
