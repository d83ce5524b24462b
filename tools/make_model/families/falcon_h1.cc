// falcon-h1: attention and a Mamba-2 mixer in every layer. The norm before the feed-forward part has no
// ".weight" in its name, as in published files.
#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/hybrid.h"

namespace kvcache::make_model {

void AddFalconH1(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("falcon-h1", shape, header);
  AddStateMetadata("falcon-h1", Mamba2Sizes(shape), header);
}

std::vector<TensorSpec> FalconH1Tensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    list.Attention(block, AttentionExtras::kNone);
    AddMamba2(shape, block, list);
    list.Norm(block + "ffn_norm");
    list.FeedForward(block, shape.ffn);
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
