// The apertus architecture (Swiss AI's Apertus): qwen3's attention in llama's pairs, and a feed-forward part
// without a gate, whose activation is xIELU with parameters of each layer:
//
//   xielu(x) = a x² + b x  for x > 0,  else  c (exp(min(x, ε)) - 1 - x) + b x
//
// The file has the raw parameters: a = softplus(alpha_p) and c = b + softplus(alpha_n). Their keys have no
// prefix.
//
// Source: Project Apertus (2025); Huang and Schlag, "Deriving activation functions using integration"
// (2024); transformers' modeling_apertus.
#include <array>
#include <string>
#include <utility>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "base/strings.h"
#include "gguf/gguf_value.h"
#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

double Softplus(double x) {
  return arithmetic::Log1p(arithmetic::Exp(x));
}

// Reads a value of each layer, or one for all.
Result<std::vector<double>> ReadOfLayers(const GgufFile& file, const char* key, int layers) {
  const GgufEntry* const entry = file.Find(key);
  if (entry == nullptr) return Corrupt(StrCat(key, " is missing"));
  const bool array = entry->type == GgufType::kArray;
  if ((array ? entry->element : entry->type) != GgufType::kFloat32 ||
      (array && entry->count != static_cast<std::uint64_t>(layers))) {
    return Corrupt(StrCat(key, " must have ", layers, " values of f32"));
  }
  std::vector<double> values;
  for (int i = 0; i < layers; ++i) values.push_back(GgufFloatAt(*entry, array ? i : 0));
  return values;
}

Result<std::vector<XieluParams>> ReadXielu(const GgufFile& file, int layers) {
  std::array<std::vector<double>, 4> values;
  constexpr const char* kKeys[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
  for (std::size_t i = 0; i < values.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(values[i], ReadOfLayers(file, kKeys[i], layers));
  }
  std::vector<XieluParams> params;
  for (std::size_t i = 0; i < static_cast<std::size_t>(layers); ++i) {
    const double beta = values[2][i];
    params.push_back({.alpha_positive = static_cast<float>(Softplus(values[0][i])),
                      .alpha_negative = static_cast<float>(beta + Softplus(values[1][i])),
                      .beta = static_cast<float>(beta),
                      .epsilon = static_cast<float>(values[3][i])});
  }
  return params;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeApertus(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  params.gated = false;
  KVCACHE_ASSIGN_OR_RETURN(params.xielu, ReadXielu(source.keys.file(), params.layers));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .norms = QkNorms::kHeads}};
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
