// Settings in config.json that cannot be, or that are not those of the weights, are refused by name, and no file is
// left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/strings.h"
#include "convert/import_model.h"
#include "import/hf_writer.h"
#include "make_model/make_model.h"

namespace kvcache::import_config_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Wrong {
  std::string architecture;
  json config = {};         // keys that replace those of a right config.json
  std::string error = {};   // a part of the message; empty: taken
  bool parameters = false;  // the rotation is under rope_parameters
};

class ImportConfig : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A model of two layers, width 64, 4 heads and 2 heads of keys.
  const GgufFile& Made(const std::string& architecture) {
    std::unique_ptr<GgufFile>& file = made_[architecture];
    if (file != nullptr) return *file;
    make_model::Request request{.architecture = architecture.substr(0, architecture.find('+'))};
    request.shape.layers = request.architecture == "gemma4" ? 4 : 2;
    request.shape.vocab = 601;
    if (architecture.ends_with("+window")) request.shape.window = 100;
    if (request.architecture.starts_with("gemma")) request.shape.window = 100;
    if (architecture.ends_with("+tied")) request.shape.output = make_model::Output::kTied;
    if (architecture == "qwen3moe" || architecture == "qwen3next") request.shape.experts = 4;
    const std::string path = StrCat(folder_, "/", architecture, ".gguf");
    const Status status = make_model::MakeModel(request, path);
    EXPECT_TRUE(status.ok()) << status.message();
    file = GgufFile::Open(path).value();
    return *file;
  }

  std::string Import(const Wrong& wrong) {
    const std::string directory = folder_ + "/model", path = folder_ + "/imported.gguf";
    WriteHfDirectory(Made(wrong.architecture), directory,
                     {.parameters = wrong.parameters, .config = wrong.config});
    const auto result = ImportModel({.directory = directory, .path = path});
    EXPECT_EQ(std::filesystem::exists(path), result.ok());
    std::filesystem::remove(path);
    return result.ok() ? "" : std::string(result.status().message());
  }

  void Check(const std::vector<Wrong>& cases) {
    for (const Wrong& wrong : cases) {
      const std::string error = Import(wrong);
      EXPECT_EQ(error.empty(), wrong.error.empty())
          << wrong.architecture << " " << wrong.config << ": " << error;
      EXPECT_THAT(error, HasSubstr(wrong.error)) << wrong.architecture << " " << wrong.config;
      EXPECT_THAT(error, HasSubstr(error.empty() ? "" : "config.json"));
    }
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "import_config.", getpid());
  std::map<std::string, std::unique_ptr<GgufFile>> made_;
};

const std::vector<std::string> kAll = {"llama",  "llama+window", "llama+tied", "qwen2",
                                       "qwen3",  "qwen3moe",     "qwen3next",  "gemma2",
                                       "gemma3", "gemma4"};

TEST_F(ImportConfig, RightOnesAreTaken) {
  for (const std::string& architecture : kAll) {
    EXPECT_EQ(Import({.architecture = architecture}), "") << architecture;
  }
  Check({{"llama", {{"vocab_size", nullptr}}, ""},
         {"llama", {{"head_dim", nullptr}}, ""},
         {"llama", {{"rms_norm_eps", nullptr}}, ""},
         {"llama", {{"rms_norm_eps", 0}}, ""},
         {"llama", {{"attention_bias", false}, {"mlp_bias", false}}, ""},
         {"llama", {{"layer_types", {"full_attention", "full_attention"}}}, ""},
         {"llama+window", {{"layer_types", {"sliding_attention", "sliding_attention"}}}, ""},
         {"llama", {{"pad_token_id", -1}}, ""},
         {"llama", {{"eos_token_id", {2, 5}}}, ""},
         {"qwen2", {{"layer_types", {"full_attention", "full_attention"}}}, ""},
         {"qwen3moe", {{"mlp_only_layers", json::array()}}, ""}});
}

TEST_F(ImportConfig, NumbersThatNoModelHas) {
  for (const char* const architecture : {"llama", "qwen3next", "gemma4"}) {
    for (const char* key :
         {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
          "head_dim", "intermediate_size", "max_position_embeddings", "vocab_size"}) {
      for (const json& value : {json(-1), json(0), json(2.5), json(1e300), json(1ull << 63),
                                json("64"), json(true), json::array({64}), json::object()}) {
        Check({{architecture, {{key, value}}, StrCat(": ", key, " is ")}});
      }
    }
    for (const json& value : {json(-1e-5), json(0.75), json(1e300), json("1e-5"), json(false)}) {
      Check({{architecture, {{"rms_norm_eps", value}}, ": rms_norm_eps is "}});
    }
  }
}

TEST_F(ImportConfig, SizesThatAreNotThoseOfTheWeights) {
  Check({{"llama", {{"vocab_size", 600}}, "vocab_size is '600'; must be 601, the number of rows"},
         {"gemma3", {{"vocab_size", 602}}, "vocab_size is '602'; must be 601"},
         {"llama", {{"head_dim", 64}}, "config.json needs"},
         {"llama", {{"head_dim", 15}}, "head_dim is '15'; must be even"},
         {"llama", {{"intermediate_size", 100}}, "config.json needs"},
         {"llama", {{"num_key_value_heads", 3}}, "num_key_value_heads is '3'; must divide the"},
         {"llama",
          {{"num_attention_heads", 3}, {"num_key_value_heads", 3}, {"head_dim", nullptr}},
          "hidden_size is "},
         {"llama", {{"tie_word_embeddings", true}}, "tie_word_embeddings is 'true'; must be false"},
         {"llama+tied",
          {{"tie_word_embeddings", false}},
          "tie_word_embeddings is 'false'; must be true"},
         {"llama+tied",
          {{"tie_word_embeddings", nullptr}},
          "tie_word_embeddings is missing; must be true"},
         {"llama", {{"tie_word_embeddings", "yes"}}, "tie_word_embeddings is "},
         {"llama", {{"attention_bias", true}}, "attention_bias is 'true'; the weights have no"},
         {"llama", {{"mlp_bias", true}}, "mlp_bias is 'true'; must be false"}});
}

TEST_F(ImportConfig, OtherNumbersOfLayers) {
  EXPECT_THAT(Import({"llama", {{"num_hidden_layers", 3}}}), HasSubstr("'layers.2."));
  EXPECT_THAT(Import({"llama", {{"num_hidden_layers", 1}}}), HasSubstr("layers.1."));
}

TEST_F(ImportConfig, TypesOfLayers) {
  const json full = "full_attention", window = "sliding_attention", delta = "linear_attention";
  for (const std::string& architecture : kAll) {
    for (const json& types :
         {json::array(), json::array({full}), json::array({full, full, full, full, full}),
          json::array({full, "chunked_attention"}), json::array({full, 5}), json("full_attention"),
          json::object(), json(3)}) {
      Check({{architecture, {{"layer_types", types}}, ": layer_types is "}});
    }
  }
  Check({{"llama", {{"layer_types", {window, full}}}, "must be full_attention for each layer"},
         {"llama+window", {{"layer_types", {full, window}}}, "must be sliding_attention"},
         {"qwen2", {{"layer_types", {window, window}}}, "must be full_attention"},
         {"gemma3", {{"layer_types", {delta, full}}}, "must be sliding_attention and full_att"},
         {"qwen3next", {{"layer_types", {full, delta}}}, "layer must be full_attention"}});
}

TEST_F(ImportConfig, Windows) {
  for (const char* const architecture : {"llama+window", "qwen2", "gemma2", "gemma3", "gemma4"}) {
    for (const json& value : {json(-1), json(0), json(1.5), json(1ull << 62), json("9")}) {
      Check({{architecture, {{"sliding_window", value}}, ": sliding_window is "}});
    }
  }
  Check({{"qwen2", {{"use_sliding_window", true}}, "use_sliding_window is 'true'; must be false"},
         {"gemma3", {{"use_bidirectional_attention", true}}, "use_bidirectional_attention is "},
         {"gemma2", {{"sliding_window_pattern", -2}}, "sliding_window_pattern is '-2'"}});
}

TEST_F(ImportConfig, Rotation) {
  for (const char* const architecture : {"llama", "qwen2", "qwen3next", "gemma2", "gemma3"}) {
    for (const json& settings : {json::array({json::object()}), json("linear"), json(2)}) {
      Check({{architecture, {{"rope_scaling", settings}}, "rope_scaling is "},
             {architecture, {{"rope_parameters", settings}}, "rope_parameters is "}});
    }
    for (const json& base : {json(-1), json(0), json(1e40), json(1e-40), json("10000")}) {
      Check({{architecture, {{"rope_theta", base}}, ": rope_theta is "}});
    }
    for (const json& share : {json(-0.5), json(0), json(1.5), json("0.5")}) {
      Check({{architecture, {{"partial_rotary_factor", share}}, ": partial_rotary_factor is "}});
    }
  }
  const auto scaled = [](json settings) { return json{{"rope_scaling", std::move(settings)}}; };
  for (const json& factor : {json(-4), json(0), json(0.5), json(1e9), json("4"), json(nullptr)}) {
    for (const char* type : {"linear", "yarn", "llama3"}) {
      Check({{"llama",
              scaled({{"rope_type", type},
                      {"factor", factor},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0}}),
              "rope_scaling: factor is "}});
    }
  }
  Check(
      {{"llama", scaled({{"rope_type", "longrope"}}), "longrope"},
       {"llama",
        scaled({{"rope_type", "llama3"},
                {"factor", 2},
                {"low_freq_factor", 4},
                {"high_freq_factor", 1}}),
        "high_freq_factor is '1'; must be above low_freq_factor"},
       {"llama", scaled({{"rope_type", "llama3"}, {"factor", 2}, {"high_freq_factor", 1}}),
        "low_freq_factor is missing"},
       {"qwen2", scaled({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 1}, {"beta_slow", 2}}),
        "beta_fast is '1'; must be above beta_slow"},
       {"qwen2", scaled({{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", -1}}),
        "attention_factor is '-1'"},
       {"qwen2",
        scaled({{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0}}),
        "original_max_position_embeddings is '0'"},
       {"llama",
        {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
        "rope_parameters is "},
       {"gemma3",
        {{"rope_parameters", {{"sliding_attention", {{"rope_type", "default"}}}}}},
        "must have settings for full_attention"},
       {"gemma4", {{"rope_parameters", {{"full_attention", json::array()}}}}, "rope_parameters"},
       {"gemma3", {{"rope_local_base_freq", -5}}, "rope_local_base_freq is '-5'"}});
}

TEST_F(ImportConfig, NumbersOfSomeClasses) {
  for (const json& value : {json(-1), json(1e300), json("8")}) {
    Check({{"gemma2", {{"query_pre_attn_scalar", value}}, "query_pre_attn_scalar is "},
           {"gemma2", {{"attn_logit_softcapping", value}}, "attn_logit_softcapping is "},
           {"gemma2", {{"final_logit_softcapping", value}}, "final_logit_softcapping is "},
           {"gemma4", {{"final_logit_softcapping", value}}, "final_logit_softcapping is "},
           {"gemma4", {{"global_head_dim", value}}, "global_head_dim is "},
           {"qwen3moe", {{"num_experts", value}}, "num_experts is "},
           {"qwen3moe", {{"num_experts_per_tok", value}}, "num_experts_per_tok is "},
           {"qwen3moe", {{"moe_intermediate_size", value}}, "moe_intermediate_size is "},
           {"qwen3moe", {{"mlp_only_layers", value}}, "mlp_only_layers is "},
           {"qwen3next", {{"mlp_only_layers", {{"0", 1}}}}, "mlp_only_layers is "},
           {"qwen3next", {{"linear_num_key_heads", value}}, "linear_num_key_heads is "},
           {"llama", {{"text_config", value}}, "text_config is "}});
  }
}

TEST_F(ImportConfig, IdsOfTokens) {
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    for (const json& id : {json(-1), json(601), json(1.5), json("2"), json::object(),
                           json::array({2, 9999}), json::array({"2"}), json(1ull << 63)}) {
      Check({{"llama", {{key, id}}, StrCat(": ", key, " is ")}});
    }
  }
}

}  // namespace
}  // namespace kvcache::import_config_test
