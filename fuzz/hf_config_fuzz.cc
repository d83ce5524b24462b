// Changes keys of a config.json that fits its weights: the model is imported into a file that can be read, or refused
// with a message, and then no file is left.
//
//   input   a byte that selects the class, then an object with the keys to replace (null removes one)
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/import_model.h"
#include "fuzz_input.h"
#include "inspect/describe_model.h"
#include "json_mutator.h"

namespace kvcache {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kRows = 8, kWidth = 8, kLayers = 2;
constexpr std::array kClasses = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                 "Gemma3ForCausalLM"};

constexpr std::array<std::string_view, 48> kKeys = {"text_config",
                                                    "quantization_config",
                                                    "hidden_size",
                                                    "num_hidden_layers",
                                                    "num_attention_heads",
                                                    "num_key_value_heads",
                                                    "head_dim",
                                                    "intermediate_size",
                                                    "max_position_embeddings",
                                                    "vocab_size",
                                                    "rms_norm_eps",
                                                    "tie_word_embeddings",
                                                    "bos_token_id",
                                                    "eos_token_id",
                                                    "pad_token_id",
                                                    "hidden_act",
                                                    "hidden_activation",
                                                    "model_type",
                                                    "rope_theta",
                                                    "rope_scaling",
                                                    "rope_parameters",
                                                    "rope_type",
                                                    "type",
                                                    "factor",
                                                    "original_max_position_embeddings",
                                                    "low_freq_factor",
                                                    "high_freq_factor",
                                                    "beta_fast",
                                                    "beta_slow",
                                                    "attention_factor",
                                                    "truncate",
                                                    "partial_rotary_factor",
                                                    "layer_types",
                                                    "full_attention",
                                                    "sliding_attention",
                                                    "sliding_window",
                                                    "sliding_window_pattern",
                                                    "use_sliding_window",
                                                    "attention_bias",
                                                    "mlp_bias",
                                                    "num_local_experts",
                                                    "num_experts_per_tok",
                                                    "query_pre_attn_scalar",
                                                    "attn_logit_softcapping",
                                                    "final_logit_softcapping",
                                                    "rope_local_base_freq",
                                                    "use_bidirectional_attention",
                                                    "mscale"};

void Write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

// The weights of two heads of 4 values, of which the keys have one.
class Weights {
 public:
  void Add(const std::string& name, std::vector<int> shape) {
    std::size_t bytes = 4;
    for (const int size : shape) bytes *= static_cast<std::size_t>(size);
    header_["model." + name] = {
        {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {bytes_, bytes_ + bytes}}};
    bytes_ += bytes;
  }
  void AddLayer(const std::string& layer, const std::string& hf_class) {
    Add(layer + "input_layernorm.weight", {kWidth});
    Add(layer + "post_attention_layernorm.weight", {kWidth});
    for (const auto& [name, rows] : {std::pair{"q", 8}, {"k", 4}, {"v", 4}, {"o", 8}}) {
      const std::string matrix = layer + "self_attn." + name + "_proj.";
      Add(matrix + "weight", {rows, kWidth});
      if (hf_class.starts_with("Qwen2") && name[0] != 'o') Add(matrix + "bias", {rows});
    }
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      Add(layer + "mlp." + name + ".weight", {kWidth, kWidth});
    }
    if (hf_class.starts_with("Qwen3") || hf_class.starts_with("Gemma3")) {
      Add(layer + "self_attn.q_norm.weight", {4});
      Add(layer + "self_attn.k_norm.weight", {4});
    }
    if (!hf_class.starts_with("Gemma3")) return;
    Add(layer + "pre_feedforward_layernorm.weight", {kWidth});
    Add(layer + "post_feedforward_layernorm.weight", {kWidth});
  }
  void WriteTo(const std::string& path) const {
    const std::string header = header_.dump();
    std::string size(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) size[i] = static_cast<char>(header.size() >> (8 * i));
    Write(path, size + header + std::string(bytes_, '\0'));
  }

 private:
  json header_;
  std::size_t bytes_ = 0;
};

std::string MakeDirectory(const std::string& hf_class) {
  std::string made =
      fs::temp_directory_path() / ("kvcache-fuzz-" + hf_class + "-" + std::to_string(getpid()));
  fs::create_directories(made);
  Weights weights;
  weights.Add("embed_tokens.weight", {kRows, kWidth});
  weights.Add("norm.weight", {kWidth});
  for (int layer = 0; layer < kLayers; ++layer) {
    weights.AddLayer("layers." + std::to_string(layer) + ".", hf_class);
  }
  weights.WriteTo(made + "/model.safetensors");
  Write(
      made + "/tokenizer.json",
      R"({"model":{"type":"BPE","byte_fallback":true,"vocab":{"<unk>":0,"<s>":1,"a":2},"merges":[]}})");
  return made;
}

json Config(const std::string& hf_class) {
  return {{"architectures", {hf_class}},  {"hidden_size", kWidth},
          {"num_hidden_layers", kLayers}, {"num_attention_heads", 2},
          {"num_key_value_heads", 1},     {"head_dim", 4},
          {"intermediate_size", kWidth},  {"max_position_embeddings", 64},
          {"vocab_size", kRows},          {"rms_norm_eps", 1e-6},
          {"tie_word_embeddings", true},  {"bos_token_id", 1}};
}

void FuzzConfig(std::size_t number, const json& changes) {
  static std::array<std::string, kClasses.size()> directories;
  std::string& directory = directories[number];
  if (directory.empty()) directory = MakeDirectory(kClasses[number]);
  json config = Config(kClasses[number]);
  config.merge_patch(changes);
  Write(directory + "/config.json", config.dump(-1, ' ', true, json::error_handler_t::replace));
  const std::string path = directory + "/model.gguf";
  const auto imported = ImportModel({.directory = directory, .path = path, .threads = 1});
  Check(imported.ok() == fs::exists(path));
  if (!imported.ok()) return Check(!imported.status().message().empty());
  const auto file = GgufFile::Open(path);
  Check(file.ok());
  const auto model = DescribeModel(**file);
  Check(model.ok() || !model.status().message().empty());
  fs::remove(path);
}

}  // namespace
}  // namespace kvcache

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size,
                                               std::size_t max, unsigned seed) {
  return kvcache::MutateJson(bytes, size, max, seed, 1, kvcache::kKeys);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::size_t number = TakeByte(&text) % kClasses.size();
  const json changes = json::parse(text, nullptr, false);
  if (changes.is_object()) FuzzConfig(number, changes);
  return 0;
}
