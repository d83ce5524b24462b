// mllama: llama's layers, of which every second has cross-attention over an image. The embedding
// has eight more rows than the output, for image tokens.
#include "make_model/families.h"

#include <cmath>

#include "base/strings.h"
#include "make_model/tensor_list.h"

namespace kvcache::make_model {
namespace {

constexpr int kImageRows = 8;

bool IsCross(int layer) {
  return layer % 2 == 1;
}

void AddCross(const Shape& shape, const std::string& block, TensorList& list) {
  const int queries = shape.heads * shape.head_dim;
  const int keys = shape.kv_heads * shape.head_dim;
  const float in = PerRoot(1.0f, shape.hidden_size);
  const float of_head = std::sqrt(kScoreDeviation);
  const std::string prefix = block + "cross_attn_";
  list.Norm(block + "attn_norm.weight");
  list.Matrix(prefix + "q_proj.weight", shape.hidden_size, queries, in);
  list.Matrix(prefix + "k_proj.weight", shape.hidden_size, keys, in);
  list.Matrix(prefix + "v_proj.weight", shape.hidden_size, keys, in);
  list.Matrix(prefix + "o_proj.weight", queries, shape.hidden_size,
              PerRoot(list.embedding() * kAttentionGain, queries));
  list.Vector(prefix + "q_norm.weight", shape.head_dim, Distribution::kNorm, of_head);
  list.Vector(prefix + "k_norm.weight", shape.head_dim, Distribution::kNorm, of_head);
  // Gates from about a half to one.
  list.Vector(prefix + "attn_gate", 1, Distribution::kNorm, 1.0f);
  list.Vector(prefix + "mlp_gate", 1, Distribution::kNorm, 1.0f);
}

}  // namespace

void AddMllama(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("mllama", shape, header);
  std::vector<std::int32_t> cross;
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (IsCross(layer)) cross.push_back(layer);
  }
  header.SetInts("mllama.attention.cross_attention_layers", cross);
}

std::vector<TensorSpec> MllamaTensors(const Shape& shape) {
  Shape untied = shape;
  untied.output = Output::kUntied;
  TensorList list(untied);
  list.Matrix("token_embd.weight", shape.hidden_size, shape.vocab + kImageRows, list.embedding());
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (IsCross(layer)) {
      AddCross(shape, block, list);
    } else {
      list.Attention(block, AttentionExtras::kNone);
    }
    list.Norm(block + "ffn_norm.weight");
    list.FeedForward(block, shape.ffn);
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
