// Encoders: the bert family, modern-bert and gemma-embedding, with what follows the pooling of their states.
//
// In the bert family norms follow the sums, so that every block reads and adds values of deviation 1.
#include "base/strings.h"
#include "make_model/families.h"

namespace kvcache::make_model {
namespace {

constexpr int kGemmaWindow = 512;  // EmbeddingGemma's
constexpr float kSmallBias = 0.2f;
constexpr float kNormBias = 0.3f;
constexpr float kTableDeviation = 0.5f;  // of types and positions, beside embeddings of 1

// The keys of encoders, which have no logits.
void AddEncoder(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  const auto set = [&](const char* key, int value) {
    header.SetUint32(StrCat(architecture, ".", key), static_cast<std::uint32_t>(value));
  };
  set("block_count", shape.layers);
  set("context_length", shape.context);
  set("embedding_length", shape.hidden_size);
  set("feed_forward_length", shape.ffn);
  set("attention.head_count", shape.heads);
  header.SetFloat32(StrCat(architecture, ".attention.layer_norm_epsilon"), 1e-12f);
  header.SetBool(StrCat(architecture, ".attention.causal"), false);
  header.SetUint32("tokenizer.ggml.token_type_count", 2);
  AddPooling(architecture, shape, header);
}

void AddRotation(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  header.SetFloat32(StrCat(architecture, ".rope.freq_base"), shape.rope_base);
}

void LayerNorm(TensorList& list, const Shape& shape, const std::string& name) {
  list.Norm(name + ".weight");
  list.Vector(name + ".bias", shape.hidden_size, Distribution::kNormal, kNormBias);
}

void Biased(TensorList& list, const std::string& name, int inputs, int outputs, float scale) {
  list.Matrix(name + ".weight", inputs, outputs, PerRoot(scale, inputs));
  list.Vector(name + ".bias", outputs, Distribution::kNormal, kSmallBias);
}

// What the forms of the bert family differ in.
struct BertForm {
  bool positions = false;  // a table
  bool fused_qkv = false;
  bool biases = true;       // of all matrices
  bool gate = false;        // of the feed-forward part
  bool head_norms = false;  // of whole rows, and a second norm after attention
};

void Attention(TensorList& list, const Shape& shape, const BertForm& form,
               const std::string& block) {
  const int size = shape.hidden_size;
  const auto matrix = [&](const std::string& name, int outputs) {
    form.biases ? Biased(list, name, size, outputs, kScoreDeviation)
                : list.Matrix(name + ".weight", size, outputs, PerRoot(kScoreDeviation, size));
  };
  if (form.fused_qkv) {
    matrix(block + "attn_qkv", 3 * size);
  } else {
    for (const char* name : {"attn_q", "attn_k", "attn_v"}) matrix(block + name, size);
  }
  matrix(block + "attn_output", size);
  if (form.head_norms) {
    LayerNorm(list, shape, block + "attn_q_norm");
    LayerNorm(list, shape, block + "attn_k_norm");
    LayerNorm(list, shape, block + "attn_norm_2");
  }
  LayerNorm(list, shape, block + "attn_output_norm");
}

void FeedForward(TensorList& list, const Shape& shape, const BertForm& form, int layer) {
  const std::string block = StrCat("blk.", layer, ".");
  const int size = shape.hidden_size;
  if (shape.experts > 0 && layer % 2 == 1) {
    const auto stack = [&](const char* name, int inputs, int outputs) {
      list.Add({.name = block + name,
                .dims = {inputs, outputs, shape.experts},
                .distribution = Distribution::kNormal,
                .scale = PerRoot(kFfnGain, inputs)});
    };
    list.Add({.name = block + "ffn_gate_inp.weight",
              .dims = {size, shape.experts},
              .distribution = Distribution::kNormal,
              .scale = PerRoot(kRouterDeviation, size),
              .keep_f32 = true});
    stack("ffn_up_exps.weight", size, shape.ffn);
    stack("ffn_down_exps.weight", shape.ffn, size);
  } else if (form.gate && !form.biases) {
    list.FeedForward(block, shape.ffn);
  } else {
    if (form.gate) {
      list.Matrix(block + "ffn_gate.weight", size, shape.ffn, PerRoot(1.0f, size));
    }
    Biased(list, block + "ffn_up", size, shape.ffn, 1.0f);
    Biased(list, block + "ffn_down", shape.ffn, size, kFfnGain);
  }
  LayerNorm(list, shape, block + "layer_output_norm");
}

std::vector<TensorSpec> BertTensorsOf(const Shape& shape, const BertForm& form) {
  TensorList list(shape);
  list.Embedding();
  const auto table = [&](const char* name, int rows) {
    list.Add({.name = name,
              .dims = {shape.hidden_size, rows},
              .scale = kTableDeviation,
              .keep_f32 = true});  // as converters leave them
  };
  table("token_types.weight", 2);
  if (form.positions) table("position_embd.weight", shape.context);
  LayerNorm(list, shape, "token_embd_norm");
  for (int layer = 0; layer < shape.layers; ++layer) {
    Attention(list, shape, form, StrCat("blk.", layer, "."));
    FeedForward(list, shape, form, layer);
  }
  if (shape.family.labels > 0) {
    Biased(list, "cls", shape.hidden_size, shape.hidden_size, 1.0f);
    Biased(list, "cls.output", shape.hidden_size, shape.family.labels, 2.0f);
  }
  return list.Take();
}

}  // namespace

void AddPooling(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  if (shape.family.pooling > 0) {
    header.SetUint32(StrCat(architecture, ".pooling_type"),
                     static_cast<std::uint32_t>(shape.family.pooling));
  }
  if (shape.family.labels < 1) return;
  std::vector<std::string> labels;
  for (int i = 0; i < shape.family.labels; ++i) labels.push_back(StrCat("label ", i));
  header.SetStrings(StrCat(architecture, ".classifier.output_labels"), labels);
}

void AddBert(const Shape& shape, GgufHeader& header) {
  AddEncoder("bert", shape, header);
}
std::vector<TensorSpec> BertTensors(const Shape& shape) {
  return BertTensorsOf(shape, {.positions = true});
}

void AddJinaBertV2(const Shape& shape, GgufHeader& header) {
  AddEncoder("jina-bert-v2", shape, header);
}
// The forms for text have a gate, those for code have norms of rows.
std::vector<TensorSpec> JinaBertV2Tensors(const Shape& shape) {
  return BertTensorsOf(shape, {.gate = !shape.family.ungated, .head_norms = shape.family.ungated});
}

void AddJinaBertV3(const Shape& shape, GgufHeader& header) {
  AddEncoder("jina-bert-v3", shape, header);
  AddRotation("jina-bert-v3", shape, header);
}
void AddNomicBert(const Shape& shape, GgufHeader& header) {
  AddEncoder("nomic-bert", shape, header);
  AddRotation("nomic-bert", shape, header);
}
std::vector<TensorSpec> JinaBertV3Tensors(const Shape& shape) {
  return BertTensorsOf(shape, {.fused_qkv = true});
}
std::vector<TensorSpec> NomicBertTensors(const Shape& shape) {
  return BertTensorsOf(shape, {.fused_qkv = true, .biases = false, .gate = true});
}

void AddNomicBertMoe(const Shape& shape, GgufHeader& header) {
  AddEncoder("nomic-bert-moe", shape, header);
  AddRotation("nomic-bert-moe", shape, header);
  const auto set = [&](const char* key, int value) {
    header.SetUint32(StrCat("nomic-bert-moe.", key), static_cast<std::uint32_t>(value));
  };
  set("moe_every_n_layers", 2);
  set("expert_count", shape.experts);
  set("expert_used_count", shape.experts_used);
}

void AddModernBert(const Shape& shape, GgufHeader& header) {
  AddEncoder("modern-bert", shape, header);
  AddRotation("modern-bert", shape, header);
  AddWindows("modern-bert", shape, header);
  if (shape.family.ungated) header.SetString("modern-bert.hidden_activation", "silu");
}
std::vector<TensorSpec> ModernBertTensors(const Shape& shape) {
  const int size = shape.hidden_size;
  TensorList list(shape);
  list.Embedding();
  list.Norm("token_embd_norm.weight");
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (layer > 0) list.Norm(block + "attn_norm.weight");
    list.Matrix(block + "attn_qkv.weight", size, 3 * size, PerRoot(kScoreDeviation, size));
    list.Matrix(block + "attn_output.weight", size, size, PerRoot(kAttentionGain, size));
    list.Norm(block + "ffn_norm.weight");
    list.Matrix(block + "ffn_up.weight", size, 2 * shape.ffn, PerRoot(1.0f, size));
    list.Matrix(block + "ffn_down.weight", shape.ffn, size, PerRoot(kFfnGain, shape.ffn));
  }
  list.Norm("output_norm.weight");
  if (shape.family.labels > 0) {
    list.Matrix("cls.weight", size, size, PerRoot(1.0f, size));
    list.Norm("cls.norm.weight");
    Biased(list, "cls.output", size, shape.family.labels, 2.0f);
  }
  return list.Take();
}

void AddGemmaEmbedding(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("gemma-embedding", shape, header);
  Shape with_window = shape;
  if (shape.window == 0) with_window.window = kGemmaWindow;
  AddWindows("gemma-embedding", with_window, header);
  AddPooling("gemma-embedding", shape, header);
  if (shape.family.dense < 1) return;
  const auto set = [&](const char* key, int value) {
    header.SetUint32(StrCat("gemma-embedding.", key), static_cast<std::uint32_t>(value));
  };
  set("dense_2_feat_in", shape.hidden_size);
  set("dense_2_feat_out", shape.family.dense);
  set("dense_3_feat_in", shape.family.dense);
  set("dense_3_feat_out", shape.hidden_size);
}
std::vector<TensorSpec> GemmaEmbeddingTensors(const Shape& shape) {
  std::vector<TensorSpec> tensors = Gemma3Tensors(shape);
  if (shape.family.dense < 1) return tensors;
  TensorList list(shape);
  list.Matrix("dense_2.weight", shape.hidden_size, shape.family.dense,
              PerRoot(1.0f, shape.hidden_size));
  list.Matrix("dense_3.weight", shape.family.dense, shape.hidden_size,
              PerRoot(1.0f, shape.family.dense));
  for (TensorSpec& tensor : list.Take()) tensors.push_back(std::move(tensor));
  return tensors;
}

}  // namespace kvcache::make_model
