// LoRA adapters with random values for the models of make_model, and models whose weights have an adapter in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "kvcache_engine/adapter.h"
#include "tensor/quantize.h"

namespace kvcache::testing {

struct RandomAdapter {
  std::int64_t rank = 4;
  float alpha = 8.0f;
  std::uint32_t seed = 1;
  float largest = 0.2f;  // of the values
  GgmlType type = GgmlType::kF32;
  std::function<bool(std::string_view tensor)>
      has{};  // empty: all matrices that adapters may change
};

// Returns whether adapters may change a tensor of a model.
inline bool IsAdaptable(const GgufFile& base, const GgufTensor& tensor) {
  if (tensor.rank < 2 || !tensor.name.ends_with(".weight")) return false;
  for (const std::string_view part : {"conv", "norm", "per_layer_token_embd", "attn_k_b",
                                      "attn_v_b", "position_embd", "token_types"}) {
    if (tensor.name.find(part) != tensor.name.npos) return false;
  }
  // A block behind the last layer is a draft head's.
  const std::string architecture(*base.GetString("general.architecture"));
  const auto layers = *base.GetIntOr(architecture + ".block_count", 0);
  const auto heads = *base.GetIntOr(architecture + ".nextn_predict_layers", 0);
  for (auto layer = layers - heads; layer < layers; ++layer) {
    if (tensor.name.starts_with(StrCat("blk.", layer, "."))) return false;
  }
  return true;
}

inline std::vector<std::string> AdaptableTensors(const GgufFile& base) {
  std::vector<std::string> names;
  for (const GgufTensor& tensor : base.tensors()) {
    if (IsAdaptable(base, tensor)) names.emplace_back(tensor.name);
  }
  return names;
}

// Returns the bytes of a GGUF file with these tensors of f32 values.
struct AdapterTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  std::vector<float> values;
  GgmlType type = GgmlType::kF32;
};
inline std::vector<std::byte> GgufBytes(GgufHeader header,
                                        const std::vector<AdapterTensor>& tensors) {
  for (const AdapterTensor& tensor : tensors) {
    header.AddTensor(tensor.name, tensor.type, tensor.dims);
  }
  const std::string text = header.Serialize().value();
  std::vector<std::byte> bytes(text.size() + header.data_bytes());
  std::memcpy(bytes.data(), text.data(), text.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto out = std::span(bytes).subspan(text.size() + header.tensors()[i].offset,
                                              header.tensors()[i].size_bytes);
    if (!Quantize(*FindGgmlType(tensors[i].type)->dtype, tensors[i].values, out).ok()) std::abort();
  }
  return bytes;
}

inline GgufHeader AdapterHeader(std::string_view architecture, float alpha) {
  GgufHeader header;
  header.SetString("general.type", "adapter");
  header.SetString("general.architecture", architecture);
  header.SetString("adapter.type", "lora");
  header.SetFloat32("adapter.lora.alpha", alpha);
  return header;
}

inline std::vector<float> RandomValues(std::uint64_t& state, std::int64_t count, float largest) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = largest * (static_cast<float>(state >> 40) / static_cast<float>(1 << 23) - 1.0f);
  }
  return values;
}

inline std::vector<AdapterTensor> AdapterTensors(const GgufFile& base,
                                                 const RandomAdapter& wanted) {
  std::vector<AdapterTensor> tensors;
  std::uint64_t state = wanted.seed;
  for (const GgufTensor& tensor : base.tensors()) {
    if (!IsAdaptable(base, tensor) || (wanted.has && !wanted.has(tensor.name))) continue;
    const bool is_embedding = tensor.name == "token_embd.weight";
    const std::int64_t inputs = tensor.dims[0], outputs = tensor.dims[1], stack = tensor.dims[2];
    std::vector<std::int64_t> a{inputs, wanted.rank}, b{wanted.rank, outputs};
    if (is_embedding) {
      a = {wanted.rank, outputs};
      b = {wanted.rank, inputs};
    }
    if (tensor.rank > 2) {
      a.push_back(stack);
      b.push_back(stack);
    }
    const auto count = [&](const std::vector<std::int64_t>& dims) {
      return dims[0] * dims[1] * (dims.size() > 2 ? dims[2] : 1);
    };
    const std::string name(tensor.name);
    tensors.push_back(
        {name + ".lora_a", a, RandomValues(state, count(a), wanted.largest), wanted.type});
    tensors.push_back(
        {name + ".lora_b", b, RandomValues(state, count(b), wanted.largest), wanted.type});
  }
  return tensors;
}

inline std::vector<std::byte> AdapterBytes(const GgufFile& base, const RandomAdapter& wanted = {}) {
  return GgufBytes(AdapterHeader(*base.GetString("general.architecture"), wanted.alpha),
                   AdapterTensors(base, wanted));
}

inline EngineAdapter MakeAdapter(const GgufFile& base, const RandomAdapter& wanted = {}) {
  return {.path = StrCat("adapter-", wanted.seed),
          .image = std::make_shared<const std::vector<std::byte>>(AdapterBytes(base, wanted))};
}

// Adds scale · alpha / r · B A to the weights of a model of f32, in place.
inline void MergeInto(const GgufTensor& tensor, std::span<float> weights,
                      const std::vector<AdapterTensor>& adapter, double factor) {
  for (std::size_t i = 0; i < adapter.size(); i += 2) {
    if (adapter[i].name != std::string(tensor.name) + ".lora_a") continue;
    const AdapterTensor& a = adapter[i];
    const AdapterTensor& b = adapter[i + 1];
    const bool is_embedding = tensor.name == "token_embd.weight";
    const std::int64_t inputs = tensor.dims[0], outputs = tensor.dims[1], r = b.dims[0];
    for (std::int64_t e = 0; e < tensor.dims[2]; ++e) {
      for (std::int64_t row = 0; row < outputs; ++row) {
        for (std::int64_t column = 0; column < inputs; ++column) {
          double sum = 0.0;
          for (std::int64_t k = 0; k < r; ++k) {
            const auto at = [](const AdapterTensor& t, std::int64_t index) {
              return static_cast<double>(t.values[static_cast<std::size_t>(index)]);
            };
            sum += is_embedding
                       ? at(b, column * r + k) * at(a, row * r + k)
                       : at(b, (e * outputs + row) * r + k) * at(a, (e * r + k) * inputs + column);
          }
          weights[static_cast<std::size_t>((e * outputs + row) * inputs + column)] +=
              static_cast<float>(factor * sum);
        }
      }
    }
  }
}

}  // namespace kvcache::testing
