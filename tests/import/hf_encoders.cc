#include "import/hf_encoders.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "import/hf_settings.h"

namespace kvcache {
namespace {

using nlohmann::json;
using Names = std::map<std::string, std::string>;

const Names& EndNames(const std::string& architecture, bool is_roberta) {
  static const Names kBert = {{"token_embd", "embeddings.word_embeddings"},
                              {"token_types", "embeddings.token_type_embeddings"},
                              {"position_embd", "embeddings.position_embeddings"},
                              {"token_embd_norm", "embeddings.LayerNorm"},
                              {"cls", "pooler.dense"},
                              {"cls.output", "classifier"}};
  static const Names kRoberta = [] {
    Names names = kBert;
    names["cls"] = "classifier.dense";
    names["cls.output"] = "classifier.out_proj";
    return names;
  }();
  static const Names kNomic = {{"token_embd", "embeddings.word_embeddings"},
                               {"token_types", "embeddings.token_type_embeddings"},
                               {"token_embd_norm", "emb_ln"}};
  static const Names kModern = {{"token_embd", "embeddings.tok_embeddings"},
                                {"token_embd_norm", "embeddings.norm"},
                                {"output_norm", "final_norm"},
                                {"cls", "head.dense"},
                                {"cls.norm", "head.norm"},
                                {"cls.output", "classifier"}};
  if (architecture == "nomic-bert") return kNomic;
  if (architecture == "modern-bert") return kModern;
  return is_roberta ? kRoberta : kBert;
}

const Names& LayerNames(const std::string& architecture) {
  static const Names kBert = {{"attn_q", "attention.self.query"},
                              {"attn_k", "attention.self.key"},
                              {"attn_v", "attention.self.value"},
                              {"attn_output", "attention.output.dense"},
                              {"attn_output_norm", "attention.output.LayerNorm"},
                              {"ffn_up", "intermediate.dense"},
                              {"ffn_down", "output.dense"},
                              {"layer_output_norm", "output.LayerNorm"}};
  static const Names kNomic = {{"attn_qkv", "attn.Wqkv"},     {"attn_output", "attn.out_proj"},
                               {"attn_output_norm", "norm1"}, {"ffn_up", "mlp.fc11"},
                               {"ffn_gate", "mlp.fc12"},      {"ffn_down", "mlp.fc2"},
                               {"layer_output_norm", "norm2"}};
  static const Names kModern = {{"attn_norm", "attn_norm"}, {"attn_qkv", "attn.Wqkv"},
                                {"attn_output", "attn.Wo"}, {"ffn_norm", "mlp_norm"},
                                {"ffn_up", "mlp.Wi"},       {"ffn_down", "mlp.Wo"}};
  if (architecture == "nomic-bert") return kNomic;
  return architecture == "modern-bert" ? kModern : kBert;
}

json BertConfig(const GgufFile& file) {
  return {{"model_type", "bert"},
          {"hidden_act", "gelu"},
          {"hidden_size", HfKey(file, "embedding_length")},
          {"num_hidden_layers", HfKey(file, "block_count")},
          {"num_attention_heads", HfKey(file, "attention.head_count")},
          {"intermediate_size", HfKey(file, "feed_forward_length")},
          {"max_position_embeddings", HfKey(file, "context_length")},
          {"layer_norm_eps", HfFloatKey(file, "attention.layer_norm_epsilon")},
          {"pad_token_id", 0}};
}

json NomicConfig(const GgufFile& file) {
  return {{"model_type", "nomic_bert"},
          {"activation_function", "swiglu"},
          {"n_embd", HfKey(file, "embedding_length")},
          {"n_layer", HfKey(file, "block_count")},
          {"n_head", HfKey(file, "attention.head_count")},
          {"n_inner", HfKey(file, "feed_forward_length")},
          {"n_positions", 8192},
          {"max_trained_positions", HfKey(file, "context_length")},
          {"layer_norm_epsilon", HfFloatKey(file, "attention.layer_norm_epsilon")},
          {"rotary_emb_base", HfFloatKey(file, "rope.freq_base")},
          {"rotary_emb_fraction", 1.0},
          {"rotary_scaling_factor", nullptr},
          {"qkv_proj_bias", false}};
}

json ModernConfig(const GgufFile& file) {
  json config = BertConfig(file);
  config.erase("hidden_act");
  config.erase("layer_norm_eps");
  config["model_type"] = "modernbert";
  config["norm_eps"] = HfFloatKey(file, "attention.layer_norm_epsilon");
  config["hidden_activation"] =
      std::string(*file.GetStringOr("modern-bert.hidden_activation", "gelu"));
  config["local_attention"] = HfKey(file, "attention.sliding_window");
  config["global_attn_every_n_layers"] = HfKey(file, "attention.sliding_window_pattern", 3);
  config["global_rope_theta"] = HfFloatKey(file, "rope.freq_base");
  config["local_rope_theta"] = 10000.0;
  config["classifier_pooling"] = "mean";
  return config;
}

}  // namespace

bool IsHfEncoder(const std::string& architecture) {
  return architecture == "bert" || architecture == "nomic-bert" || architecture == "modern-bert";
}

std::string HfEncoderName(const std::string& architecture, const std::string& name,
                          bool is_roberta) {
  const std::size_t ending = name.rfind('.');
  std::string part = name.substr(0, ending);
  const std::string prefix = architecture == "bert" ? (is_roberta ? "roberta." : "bert.") : "";
  if (!part.starts_with("blk.")) {
    const std::string& found = EndNames(architecture, is_roberta).at(part);
    return (found.starts_with("classifier") ? "" : prefix) + found + name.substr(ending);
  }
  const std::size_t dot = part.find('.', 4);
  const std::string layer = part.substr(4, dot - 4);
  const char* const layers = architecture == "bert"         ? "encoder.layer."
                             : architecture == "nomic-bert" ? "encoder.layers."
                                                            : "layers.";
  return StrCat(prefix, layers, layer, ".", LayerNames(architecture).at(part.substr(dot + 1)),
                name.substr(ending));
}

json HfEncoderConfig(const GgufFile& file) {
  const std::string architecture(*file.GetString("general.architecture"));
  json config = architecture == "bert"         ? BertConfig(file)
                : architecture == "nomic-bert" ? NomicConfig(file)
                                               : ModernConfig(file);
  config["vocab_size"] = file.FindTensor("token_embd.weight")->dims[1];
  config["type_vocab_size"] = *file.GetInt("tokenizer.ggml.token_type_count");
  const std::string labels = architecture + ".classifier.output_labels";
  if (file.Find(labels) == nullptr) return config;
  int i = 0;
  const auto names = file.GetStrings(labels);
  for (const std::string_view name : *names) config["id2label"][StrCat(i++)] = std::string(name);
  return config;
}

json WordPieceJson(std::int64_t count) {
  std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  json added = json::array();
  for (const std::string& token : tokens) {
    added.push_back({{"id", added.size()}, {"content", token}, {"special", true}});
  }
  for (char c = 'a'; c <= 'z'; ++c) tokens.push_back(std::string(1, c));
  for (char c = 'a'; c <= 'z'; ++c) tokens.push_back(std::string("##") + c);
  for (int i = 0; std::ssize(tokens) < count; ++i) tokens.push_back(StrCat("w", i));
  json vocabulary = json::object();
  for (const std::string& token : tokens) vocabulary[token] = vocabulary.size();
  const auto special = [](const char* token) {
    return json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  };
  const auto sequence = [](const char* name) {
    return json{{"Sequence", {{"id", name}, {"type_id", 0}}}};
  };
  return {
      {"added_tokens", added},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {special("[CLS]"), sequence("A"), special("[SEP]")}},
        {"pair",
         {special("[CLS]"), sequence("A"), special("[SEP]"), sequence("B"), special("[SEP]")}}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 100},
        {"vocab", vocabulary}}}};
}

}  // namespace kvcache
