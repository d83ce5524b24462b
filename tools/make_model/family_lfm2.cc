// lfm2: short convolutions between two gates, and every so many layers attention with norms of
// heads. The last norm goes by another name.
#include <cmath>

#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/hybrid.h"

namespace kvcache::make_model {
namespace {

constexpr int kTaps = 3;
// A product of three normal values, one of them a sum over taps: its mean square is about 2.
constexpr float kConvGain = 0.6f;

void AddConvolution(const Shape& shape, const std::string& block, TensorList& list) {
  list.Norm(block + "attn_norm.weight");
  list.Matrix(block + "shortconv.in_proj.weight", shape.width, 3 * shape.width,
              PerRoot(1.0f, shape.width));
  AddTaps(list, block + "shortconv.conv.weight", kTaps, shape.width);
  list.Matrix(block + "shortconv.out_proj.weight", shape.width, shape.width,
              PerRoot(list.embedding() * kConvGain, shape.width));
}

}  // namespace

void AddLfm2(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("lfm2", shape, header, {.kv_heads = KvHeadsByLayer(shape)});
  header.SetUint32("lfm2.shortconv.l_cache", kTaps);
}

std::vector<TensorSpec> Lfm2Tensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (IsAttention(shape, layer)) {
      list.Attention(block, AttentionExtras::kHeadNorms);
    } else {
      AddConvolution(shape, block, list);
    }
    list.Norm(block + "ffn_norm.weight");
    list.FeedForward(block, shape.ffn);
  }
  list.Output("token_embd_norm.weight");
  return list.Take();
}

}  // namespace kvcache::make_model
