#include "import/hf_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/strings.h"

#include "import/hf_encoders.h"
#include "import/hf_settings.h"

namespace kvcache {
namespace {

using nlohmann::json;

// ---- Tokenizer

json TokenizerJson(const GgufFile& file, bool pairs) {
  json vocabulary = json::object();
  std::map<std::string, std::int64_t> ids;
  std::vector<std::string> tokens;
  const auto texts = file.GetStrings("tokenizer.ggml.tokens");
  const auto types = file.GetInts("tokenizer.ggml.token_type");
  for (const std::string_view token : *texts) {
    tokens.emplace_back(token);
    vocabulary[tokens.back()] = tokens.size() - 1;
    ids[tokens.back()] = static_cast<std::int64_t>(tokens.size()) - 1;
  }
  json merges = json::array();
  json added = json::array();
  std::int64_t id = 0;
  for (const std::int64_t type : *types) {
    const std::string& token = tokens[static_cast<std::size_t>(id)];
    if (type == 2 || type == 3) {
      added.push_back({{"id", id}, {"content", token}, {"special", true}, {"lstrip", false}});
    }
    for (std::size_t cut = 1; type == 1 && cut < token.size(); ++cut) {
      const std::string left = token.substr(0, cut);
      const std::string right = token.substr(cut);
      if (!ids.contains(left) || !ids.contains(right)) continue;
      pairs ? merges.push_back({left, right}) : merges.push_back(left + " " + right);
    }
    ++id;
  }
  return {
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "\xe2\x96\x81"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xe2\x96\x81"}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocabulary},
        {"merges", merges}}}};
}

// ---- Weights

struct Source {
  std::string name;       // in Hugging Face's layout
  bool halves = false;    // rows are rotated as halves
  bool less_one = false;  // norms without the 1
};

// Returns the Hugging Face name of a tensor of a layer, without "model.layers.N.".
std::string LayerName(const std::string& name, const std::string& architecture) {
  const bool gemma = architecture.starts_with("gemma");
  const std::map<std::string, std::string> names = {
      {"attn_norm", "input_layernorm"},
      {"ffn_norm", gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm"},
      {"post_attention_norm", "post_attention_layernorm"},
      {"post_ffw_norm", "post_feedforward_layernorm"},
      {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"},
      {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"},
      {"ffn_gate", "mlp.gate_proj"},
      {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},
      {"ffn_gate_inp", architecture == "llama" ? "block_sparse_moe.gate" : "mlp.gate"},
      {"inp_gate", "per_layer_input_gate"},
      {"proj", "per_layer_projection"},
      {"post_norm", "post_per_layer_input_norm"},
      {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
      {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
      {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
      {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
      {"ssm_ba", "linear_attn.in_proj_ba"},
      {"ssm_conv1d", "linear_attn.conv1d"},
      {"ssm_norm", "linear_attn.norm"},
      {"ssm_out", "linear_attn.out_proj"},
  };
  if (name == "layer_output_scale.weight") return "layer_scalar";
  if (name == "ssm_dt.bias") return "linear_attn.dt_bias";
  if (name == "ssm_a") return "linear_attn.A_log";
  const std::size_t dot = name.rfind('.');
  const auto found = names.find(name.substr(0, dot));
  EXPECT_NE(found, names.end()) << name;
  return found == names.end() ? name : found->second + name.substr(dot);
}

std::string ExpertName(const std::string& name, const std::string& architecture, int expert) {
  const bool mixtral = architecture == "llama";
  const std::map<std::string, std::string> names = {
      {"ffn_gate_exps.weight", mixtral ? "w1" : "gate_proj"},
      {"ffn_up_exps.weight", mixtral ? "w3" : "up_proj"},
      {"ffn_down_exps.weight", mixtral ? "w2" : "down_proj"}};
  return StrCat(mixtral ? "block_sparse_moe" : "mlp", ".experts.", expert, ".", names.at(name),
                ".weight");
}

std::string TypeName(const GgufTensor& tensor) {
  switch (tensor.type->type) {
    case GgmlType::kF32: return "F32";
    case GgmlType::kF16: return "F16";
    default: return "BF16";
  }
}

std::string Bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Moves value (2j, 2j + 1) of each head to (j, j + d / 2), a row at a time.
std::string AsHalves(const std::string& bytes, std::int64_t rows, std::int64_t head_dim) {
  const std::size_t row = bytes.size() / static_cast<std::size_t>(rows);
  std::string out(bytes.size(), '\0');
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t j = i % head_dim;
    const std::int64_t to = i - j + (j % 2 == 0 ? j / 2 : head_dim / 2 + j / 2);
    out.replace(static_cast<std::size_t>(to) * row, row,
                bytes.substr(static_cast<std::size_t>(i) * row, row));
  }
  return out;
}

std::string Mapped(const std::string& bytes, const std::function<float(float)>& change) {
  std::string out = bytes;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(float));
    value = change(value);
    std::memcpy(out.data() + at, &value, sizeof(float));
  }
  return out;
}

// Joins q, k, v of attn_qkv and z of attn_gate to the rows of each key head.
std::string JoinedQkvz(const GgufFile& file, const std::string& block) {
  const GgufTensor& qkv = *file.FindTensor(block + "attn_qkv.weight");
  const GgufTensor& z = *file.FindTensor(block + "attn_gate.weight");
  const auto row =
      static_cast<std::size_t>(qkv.bytes.size()) / static_cast<std::size_t>(qkv.dims[1]);
  const auto groups = static_cast<std::size_t>(HfKey(file, "ssm.group_count"));
  const auto keys = static_cast<std::size_t>(HfKey(file, "ssm.state_size"));
  const auto values = static_cast<std::size_t>(HfKey(file, "ssm.inner_size")) / groups;
  std::string out;
  const auto add = [&](const GgufTensor& from, std::size_t first, std::size_t count) {
    out += Bytes(from.bytes.subspan(first * row, count * row));
  };
  for (std::size_t g = 0; g < groups; ++g) {
    add(qkv, g * keys, keys);
    add(qkv, groups * keys + g * keys, keys);
    add(qkv, 2 * groups * keys + g * values, values);
    add(z, g * values, values);
  }
  return out;
}

class Writer {
 public:
  Writer(const GgufFile& file, const HfStyle& style)
      : file_(file), style_(style), architecture_(*file.GetString("general.architecture")) {}

  std::vector<HfTensor> Tensors() {
    for (const GgufTensor& tensor : file_.tensors()) Add(tensor);
    if (architecture_ == "gemma4-assistant") AddClusters();
    return std::move(tensors_);
  }

 private:
  void Add(const GgufTensor& tensor) {
    const std::string name(tensor.name);
    if (name == "rope_freqs.weight" || name.starts_with("dense_")) return;
    std::vector<std::int64_t> shape;
    for (int i = tensor.rank - 1; i >= 0; --i)
      shape.push_back(tensor.dims[static_cast<std::size_t>(i)]);
    std::string bytes = Bytes(tensor.bytes);
    if (HfNormsLackOne(architecture_, name)) {
      bytes = Mapped(bytes, [](float x) { return x - 1.0f; });
    }
    if (name.ends_with("ssm_a")) bytes = Mapped(bytes, [](float x) { return std::log(-x); });
    if (IsHfEncoder(architecture_)) return AddOfEncoder(name, tensor, shape, bytes);
    if (!name.starts_with("blk.")) {
      const std::map<std::string, std::string> ends = {
          {"token_embd.weight", "embed_tokens.weight"},
          {"output_norm.weight", "norm.weight"},
          {"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
          {"per_layer_model_proj.weight", "per_layer_model_projection.weight"},
          {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
          {"nextn.pre_projection.weight", "pre_projection.weight"},
          {"nextn.post_projection.weight", "post_projection.weight"},
          {"output.weight", "lm_head.weight"}};
      return Put(ends.at(name), TypeName(tensor), shape, bytes);
    }
    const std::size_t dot = name.find('.', 4);
    const std::string part = name.substr(dot + 1);
    const std::map<std::string, std::string> head = {
        {"nextn.eh_proj.weight", "mtp.fc.weight"},
        {"nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
        {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
        {"nextn.shared_head_norm.weight", "mtp.norm.weight"}};
    if (const auto found = head.find(part); found != head.end()) {
      return Put(found->second, TypeName(tensor), shape, bytes);
    }
    const bool assistant = architecture_ == "gemma4-assistant";
    const std::int64_t layers =
        HfKey(file_, "block_count") - (assistant ? 0 : HfKey(file_, "nextn_predict_layers"));
    const std::string number = name.substr(4, dot - 4);
    const std::string layer =
        std::stoll(number) < layers ? "layers." + number + "." : "mtp.layers.0.";
    if (tensor.rank == 3) return AddExperts(tensor, layer, part);
    if (part == "attn_gate.weight") return;
    if (part == "attn_qkv.weight") {
      shape[0] += HfKey(file_, "ssm.inner_size");
      return Put(layer + "linear_attn.in_proj_qkvz.weight", TypeName(tensor), shape,
                 JoinedQkvz(file_, name.substr(0, dot + 1)));
    }
    if (part == "ssm_conv1d.weight") shape = {shape[0], 1, shape[1]};
    if (part == "ffn_gate_inp_shexp.weight") shape = {1, shape[0]};
    const bool rotated = part.starts_with("attn_q.") || part.starts_with("attn_k.");
    if (architecture_ == "llama" && rotated) {
      bytes = AsHalves(bytes, shape[0], HfKey(file_, "attention.key_length"));
    }
    Put(layer + LayerName(part, architecture_), TypeName(tensor), shape, bytes);
  }

  void AddOfEncoder(const std::string& name, const GgufTensor& tensor,
                    std::vector<std::int64_t> shape, std::string bytes) {
    if (name == "position_embd.weight") {  // rows in front of those that texts have
      bytes.insert(0, static_cast<std::size_t>(shape[1] * style_.first_positions) * sizeof(float),
                   '\0');
      shape[0] += style_.first_positions;
    }
    tensors_.push_back({HfEncoderName(architecture_, name, style_.first_positions > 0),
                        TypeName(tensor), std::move(shape), std::move(bytes)});
  }

  // Tensors of an assistant that the import leaves out: clusters of tokens.
  void AddClusters() {
    const std::int64_t tokens = HfKey(file_, "vocab_size");
    const std::int64_t size = HfKey(file_, "embedding_length");
    tensors_.push_back({"masked_embedding.centroids.weight",
                        "F32",
                        {2, size},
                        std::string(static_cast<std::size_t>(2 * size) * sizeof(float), '\0')});
    tensors_.push_back({"masked_embedding.token_ordering",
                        "I64",
                        {tokens},
                        std::string(static_cast<std::size_t>(tokens) * 8, '\0')});
  }

  void AddExperts(const GgufTensor& tensor, const std::string& layer, const std::string& part) {
    const auto size = tensor.bytes.size() / static_cast<std::size_t>(tensor.dims[2]);
    for (int i = 0; i < static_cast<int>(tensor.dims[2]); ++i) {
      Put(layer + ExpertName(part, architecture_, i), TypeName(tensor),
          {tensor.dims[1], tensor.dims[0]},
          Bytes(tensor.bytes.subspan(static_cast<std::size_t>(i) * size, size)));
    }
  }

  void Put(const std::string& name, const std::string& type, std::vector<std::int64_t> shape,
           std::string bytes) {
    if (name.starts_with("mtp.")) {
      tensors_.push_back({name, type, std::move(shape), std::move(bytes)});
      return;
    }
    const bool head = name == "lm_head.weight" || name == "pre_projection.weight" ||
                      name == "post_projection.weight";
    const char* prefix = style_.text_config ? (head ? "language_model." : "language_model.model.")
                                            : (head ? "" : "model.");
    tensors_.push_back({prefix + name, type, std::move(shape), std::move(bytes)});
  }

  const GgufFile& file_;
  const HfStyle& style_;
  const std::string architecture_;
  std::vector<HfTensor> tensors_;
};

void WriteWeights(const GgufFile& file, const std::string& directory, const HfStyle& style) {
  const std::vector<HfTensor> tensors = Writer(file, style).Tensors();
  if (style.shards == 1) {
    return WriteText(directory + "/model.safetensors", SafetensorsBytes(tensors));
  }
  json map = json::object();
  std::vector<std::vector<HfTensor>> shards(static_cast<std::size_t>(style.shards));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t shard = i % shards.size();
    shards[shard].push_back(tensors[i]);
    map[tensors[i].name] = StrCat("model-", shard, ".safetensors");
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    WriteText(StrCat(directory, "/model-", i, ".safetensors"), SafetensorsBytes(shards[i]));
  }
  WriteText(directory + "/model.safetensors.index.json",
            json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
}

// Writes what sentence-transformers has, if the file states a pooling of vectors.
void WriteModules(const GgufFile& file, const std::string& directory, const HfStyle& style) {
  const std::int64_t pooling = HfKey(file, "pooling_type");
  if (pooling == 0 || pooling == 4) return;
  json modules =
      json::array({{{"type", "sentence_transformers.models.Transformer"}, {"path", ""}},
                   {{"type", "sentence_transformers.models.Pooling"}, {"path", "1_Pooling"}}});
  std::filesystem::create_directories(directory + "/1_Pooling");
  json settings = {{"word_embedding_dimension", HfKey(file, "embedding_length")},
                   {"pooling_mode_mean_tokens", pooling == 1},
                   {"pooling_mode_cls_token", pooling == 2},
                   {"pooling_mode_lasttoken", pooling == 3},
                   {"pooling_mode_max_tokens", false}};
  WriteText(directory + "/1_Pooling/config.json", settings.dump());
  for (const int number : {2, 3}) {
    const GgufTensor* const dense = file.FindTensor(StrCat("dense_", number, ".weight"));
    if (dense == nullptr) continue;
    const std::string folder = StrCat(number, "_Dense");
    modules.push_back({{"type", "sentence_transformers.models.Dense"}, {"path", folder}});
    std::filesystem::create_directories(directory + "/" + folder);
    WriteText(StrCat(directory, "/", folder, "/config.json"),
              json{{"in_features", dense->dims[0]},
                   {"out_features", dense->dims[1]},
                   {"bias", false},
                   {"activation_function", "torch.nn.modules.linear.Identity"}}
                  .dump());
    WriteText(StrCat(directory, "/", folder, "/model.safetensors"),
              SafetensorsBytes({{"linear.weight",
                                 TypeName(*dense),
                                 {dense->dims[1], dense->dims[0]},
                                 Bytes(dense->bytes)}}));
  }
  modules.push_back({{"type", "sentence_transformers.models.Normalize"}, {"path", "4_Normalize"}});
  for (const auto& [key, value] : style.modules.items()) modules.push_back(value);
  WriteText(directory + "/modules.json", modules.dump());
}

}  // namespace

bool HfNormsLackOne(const std::string& architecture, const std::string& name) {
  if (!name.ends_with("norm.weight") || name.ends_with("ssm_norm.weight")) return false;
  return architecture == "gemma2" || architecture == "gemma3" || architecture == "qwen3next" ||
         architecture == "gemma-embedding";
}

std::string SafetensorsBytes(const std::vector<HfTensor>& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const HfTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.type},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  std::string size;
  for (int i = 0; i < 8; ++i) size += static_cast<char>(text.size() >> (8 * i) & 255);
  return size + text + data;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void WriteHfDirectory(const GgufFile& file, const std::string& directory, const HfStyle& style) {
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  WriteText(directory + "/config.json", HfConfigJson(file, style).dump());
  WriteModules(file, directory, style);
  if (IsHfEncoder(std::string(*file.GetString("general.architecture")))) {
    const std::int64_t tokens = file.FindTensor("token_embd.weight")->dims[1];
    WriteText(directory + "/tokenizer.json", WordPieceJson(tokens).dump());
    WriteText(directory + "/tokenizer_config.json", json{{"pad_token", "[PAD]"}}.dump());
    return WriteWeights(file, directory, style);
  }
  WriteText(directory + "/tokenizer.json", TokenizerJson(file, style.pairs).dump());
  WriteText(directory + "/tokenizer_config.json",
            json{{"bos_token", "<s>"},
                 {"eos_token", {{"content", "</s>"}, {"special", true}}},
                 {"unk_token", "<unk>"},
                 {"add_bos_token", true},
                 {"add_eos_token", false}}
                .dump());
  WriteWeights(file, directory, style);
}

}  // namespace kvcache
