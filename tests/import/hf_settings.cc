#include "import/hf_settings.h"

#include "import/hf_encoders.h"

#include <map>
#include <utility>

namespace kvcache {

using nlohmann::json;

std::int64_t HfKey(const GgufFile& file, const std::string& key, std::int64_t otherwise) {
  const std::string architecture(*file.GetString("general.architecture"));
  return file.GetIntOr(architecture + "." + key, otherwise).value();
}

double HfFloatKey(const GgufFile& file, const std::string& key, double otherwise) {
  const std::string architecture(*file.GetString("general.architecture"));
  return file.GetFloatOr(architecture + "." + key, otherwise).value();
}

namespace {

json RopeScaling(const GgufFile& file, const std::string& type_key) {
  const std::string architecture(*file.GetString("general.architecture"));
  const std::string type(*file.GetStringOr(architecture + ".rope.scaling.type", ""));
  if (!type.empty()) {
    json scaling = {{type_key, type}, {"factor", HfFloatKey(file, "rope.scaling.factor")}};
    const std::int64_t original = HfKey(file, "rope.scaling.original_context_length");
    if (original > 0) scaling["original_max_position_embeddings"] = original;
    return scaling;
  }
  if (file.FindTensor("rope_freqs.weight") == nullptr) return nullptr;
  // The settings of make_model.
  return {{type_key, "llama3"},
          {"factor", 4.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 256}};
}

void AddRope(const GgufFile& file, const HfStyle& style, json* config) {
  const double base = HfFloatKey(file, "rope.freq_base");
  json scaling = RopeScaling(file, style.parameters ? "rope_type" : "type");
  if (!style.parameters) {
    (*config)["rope_theta"] = base;
    (*config)["rope_scaling"] = scaling;
    return;
  }
  if (scaling.is_null()) scaling = {{"rope_type", "default"}};
  scaling["rope_theta"] = base;
  (*config)["rope_parameters"] = scaling;
}

void AddQwen3Next(const GgufFile& file, json* config) {
  json& c = *config;
  c["hidden_act"] = "silu";
  c["num_experts"] = HfKey(file, "expert_count");
  c["num_experts_per_tok"] = HfKey(file, "expert_used_count");
  c["moe_intermediate_size"] = HfKey(file, "expert_feed_forward_length");
  c["shared_expert_intermediate_size"] = HfKey(file, "expert_shared_feed_forward_length");
  c["full_attention_interval"] = HfKey(file, "full_attention_interval");
  c["linear_conv_kernel_dim"] = HfKey(file, "ssm.conv_kernel");
  c["linear_key_head_dim"] = HfKey(file, "ssm.state_size");
  c["linear_num_key_heads"] = HfKey(file, "ssm.group_count");
  c["linear_num_value_heads"] = HfKey(file, "ssm.time_step_rank");
  c["linear_value_head_dim"] = HfKey(file, "ssm.inner_size") / HfKey(file, "ssm.time_step_rank");
  c["mlp_only_layers"] = json::array();
  c["partial_rotary_factor"] = 0.25;
}

void AddGemma4(const GgufFile& file, json* config) {
  json& c = *config;
  const std::string architecture(*file.GetString("general.architecture"));
  const auto windowed = file.GetBools(architecture + ".attention.sliding_window_pattern");
  const auto kv_heads = file.GetInts(architecture + ".attention.head_count_kv");
  json types = json::array();
  std::size_t layer = 0;
  for (const std::int64_t heads : *kv_heads) {
    const bool window = *std::next(windowed->begin(), static_cast<std::ptrdiff_t>(layer++));
    types.push_back(window ? "sliding_attention" : "full_attention");
    c[window ? "num_key_value_heads" : "num_global_key_value_heads"] = heads;
  }
  c["layer_types"] = types;
  c["attention_k_eq_v"] = true;
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c["head_dim"] = HfKey(file, "attention.key_length_swa");
  c["global_head_dim"] = HfKey(file, "attention.key_length");
  c["num_kv_shared_layers"] = HfKey(file, "attention.shared_kv_layers");
  c["hidden_size_per_layer_input"] = HfKey(file, "embedding_length_per_layer_input");
  c["sliding_window"] = HfKey(file, "attention.sliding_window");
  const double cap = HfFloatKey(file, "final_logit_softcapping", 0.0);
  c["final_logit_softcapping"] = cap > 0.0 ? json(cap) : json(nullptr);
  c.erase("rope_theta");
  c.erase("rope_scaling");
  c["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "proportional"},
        {"partial_rotary_factor", 0.5},  // make_model's share
        {"rope_theta", HfFloatKey(file, "rope.freq_base")}}},
      {"sliding_attention",
       {{"rope_type", "default"}, {"rope_theta", HfFloatKey(file, "rope.freq_base_swa")}}}};
}

void AddFamily(const GgufFile& file, const std::string& architecture, json* config) {
  json& c = *config;
  if (architecture == "llama") {
    c["hidden_act"] = "silu";
    const std::int64_t window = HfKey(file, "attention.sliding_window");
    if (window > 0) c["sliding_window"] = window;
    if (HfKey(file, "expert_count") > 0) {
      c["num_local_experts"] = HfKey(file, "expert_count");
      c["num_experts_per_tok"] = HfKey(file, "expert_used_count");
    }
  } else if (architecture == "qwen2") {
    c["hidden_act"] = "silu";
    c["use_sliding_window"] = false;
    c["sliding_window"] = 4096;
  } else if (architecture == "qwen3moe") {
    c["num_experts"] = HfKey(file, "expert_count");
    c["num_experts_per_tok"] = HfKey(file, "expert_used_count");
    c["moe_intermediate_size"] =
        HfKey(file, "expert_feed_forward_length", HfKey(file, "feed_forward_length"));
    c["norm_topk_prob"] = true;
  } else if (architecture == "qwen3next") {
    AddQwen3Next(file, config);
  } else if (architecture.starts_with("gemma4")) {
    AddGemma4(file, config);
  } else if (architecture.starts_with("gemma")) {
    c["hidden_activation"] = "gelu_pytorch_tanh";
    c["query_pre_attn_scalar"] = HfKey(file, "attention.key_length");
    c["sliding_window"] = HfKey(file, "attention.sliding_window");
    if (architecture == "gemma-embedding") c["use_bidirectional_attention"] = true;
    const bool second = architecture == "gemma2";
    c["attn_logit_softcapping"] = nullptr;
    c["final_logit_softcapping"] = nullptr;
    if (second) c["attn_logit_softcapping"] = HfFloatKey(file, "attn_logit_softcapping");
    if (second) c["final_logit_softcapping"] = HfFloatKey(file, "final_logit_softcapping");
  }
}

json EncoderJson(const GgufFile& file, const HfStyle& style) {
  const std::string architecture(*file.GetString("general.architecture"));
  std::string name = architecture == "nomic-bert"    ? "NomicBert"
                     : architecture == "modern-bert" ? "ModernBert"
                     : style.first_positions > 0     ? "XLMRoberta"
                                                     : "Bert";
  name += HfKey(file, "pooling_type") == 4 ? "ForSequenceClassification" : "Model";
  json config = HfEncoderConfig(file);
  config["architectures"] = {name};
  if (style.first_positions > 0) {
    config["pad_token_id"] = style.first_positions - 1;
    config["max_position_embeddings"] = HfKey(file, "context_length") + style.first_positions;
  }
  for (const auto& [key, value] : style.config.items()) {
    value.is_null() ? static_cast<void>(config.erase(key)) : static_cast<void>(config[key] = value);
  }
  return config;
}

}  // namespace

json HfConfigJson(const GgufFile& file, const HfStyle& style) {
  const std::string architecture(*file.GetString("general.architecture"));
  const bool window = HfKey(file, "attention.sliding_window") > 0;
  const bool experts = HfKey(file, "expert_count") > 0;
  const bool assistant = architecture == "gemma4-assistant";
  if (IsHfEncoder(architecture)) return EncoderJson(file, style);
  const std::map<std::string, std::pair<std::string, std::string>> classes = {
      {"llama", experts  ? std::pair{"MixtralForCausalLM", "mixtral"}
                : window ? std::pair{"MistralForCausalLM", "mistral"}
                         : std::pair{"LlamaForCausalLM", "llama"}},
      {"qwen2", {"Qwen2ForCausalLM", "qwen2"}},
      {"qwen3", {"Qwen3ForCausalLM", "qwen3"}},
      {"qwen3moe", {"Qwen3MoeForCausalLM", "qwen3_moe"}},
      {"qwen3next", {"Qwen3NextForCausalLM", "qwen3_next"}},
      {"gemma2", {"Gemma2ForCausalLM", "gemma2"}},
      {"gemma3", style.text_config ? std::pair{"Gemma3ForConditionalGeneration", "gemma3_text"}
                                   : std::pair{"Gemma3ForCausalLM", "gemma3_text"}},
      {"gemma-embedding", {"Gemma3TextModel", "gemma3_text"}},
      {"gemma4", {"Gemma4ForConditionalGeneration", "gemma4_text"}},
      {"gemma4-assistant", {"Gemma4AssistantForCausalLM", "gemma4_text"}}};
  json config = {{"hidden_size", HfKey(file, "embedding_length")},
                 {"num_hidden_layers", HfKey(file, "block_count") -
                                           (assistant ? 0 : HfKey(file, "nextn_predict_layers"))},
                 {"num_attention_heads", HfKey(file, "attention.head_count")},
                 {"num_key_value_heads",
                  architecture.starts_with("gemma4") ? 0 : HfKey(file, "attention.head_count_kv")},
                 {"head_dim", HfKey(file, "attention.key_length")},
                 {"intermediate_size", HfKey(file, "feed_forward_length")},
                 {"max_position_embeddings", HfKey(file, "context_length")},
                 {"vocab_size", HfKey(file, "vocab_size")},
                 {"rms_norm_eps", HfFloatKey(file, "attention.layer_norm_rms_epsilon")},
                 {"tie_word_embeddings", file.FindTensor("output.weight") == nullptr},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  config["model_type"] = classes.at(architecture).second;
  config[style.parameters ? "dtype" : "torch_dtype"] = "float32";
  AddRope(file, style, &config);
  AddFamily(file, architecture, &config);
  for (const auto& [key, value] : style.config.items()) {
    value.is_null() ? static_cast<void>(config.erase(key)) : static_cast<void>(config[key] = value);
  }
  json outer = style.text_config || assistant ? json{{"text_config", config}} : config;
  if (assistant) {
    outer["model_type"] = "gemma4_assistant";
    outer["backbone_hidden_size"] = HfKey(file, "embedding_length_out");
    outer["use_ordered_embeddings"] = true;
    outer["num_centroids"] = 2;
  }
  if (!outer.contains("architectures")) outer["architectures"] = {classes.at(architecture).first};
  return outer;
}

}  // namespace kvcache
