// gemma4's assistant from a directory in Hugging Face's layout: it drafts for an imported model as the GGUF
// files do that both were written from, and directories that are no assistants are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/strings.h"
#include "convert/import_model.h"
#include "import/hf_writer.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/head_drafter.h"
#include "support/assistant_pair.h"

namespace kvcache::import_assistant_test {
namespace {

using nlohmann::json;
using testing::AssistantPair;
using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  return StrCat(::testing::TempDir(), "assistant_", name, ".", getpid());
}

// Writes the file as a directory, imports that, and returns the path of the result.
std::string Imported(const std::string& path, const std::string& folder,
                     std::optional<WeightScheme> scheme) {
  WriteHfDirectory(*GgufFile::Open(path).value(), folder);
  const auto result =
      ImportModel({.directory = folder, .path = folder + ".gguf", .scheme = scheme});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return folder + ".gguf";
}

GenerateResult Answer(const std::string& model, const std::string& head) {
  const auto engine = Engine::Open(model, {.threads = 2, .context = 160, .draft_head = head});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  const auto drafter = *MakeHeadDrafter(**engine);
  GenerateRequest request;
  for (int i = 0; i < 40; ++i) request.prompt.push_back(3 + i * 37 % 250);
  request.max_tokens = 60;
  request.sampling.temperature = 0.0f;
  request.drafter = drafter.get();
  request.draft_tokens = 4;
  const auto scheduler = std::move(*Scheduler::Make(**engine, {}));
  return Generate(*scheduler, request).value();
}

TEST(ImportAssistant, DraftsAsTheFilesDo) {
  const AssistantPair pair(Folder("pair"));
  const std::string model = Folder("model");
  const std::string head = Folder("head");
  const GenerateResult expected = Answer(pair.model(), pair.head());
  EXPECT_GT(expected.speculation.accepted, 0);
  const GenerateResult same =
      Answer(Imported(pair.model(), model, {}), Imported(pair.head(), head, {}));
  EXPECT_EQ(same.tokens, expected.tokens);
  EXPECT_EQ(same.speculation.drafted, expected.speculation.drafted);
  EXPECT_EQ(same.speculation.accepted, expected.speculation.accepted);
  // Other bits of the head change what it drafts, and no token.
  const auto scheme = ParseWeightScheme("q4_0");
  ASSERT_TRUE(scheme.ok());
  const GenerateResult quantized = Answer(model + ".gguf", Imported(pair.head(), head, *scheme));
  EXPECT_EQ(quantized.tokens, expected.tokens);
  EXPECT_GT(quantized.speculation.drafted, 0);
  for (const std::string& path : {model, head}) {
    std::filesystem::remove_all(path);
    std::filesystem::remove(path + ".gguf");
  }
}

class BadAssistant : public ::testing::Test {
 protected:
  void SetUp() override {
    make_model::Request request{.architecture = "gemma4-assistant", .type = DType::kBF16};
    ASSERT_TRUE(make_model::MakeModel(request, path_).ok());
    file_ = GgufFile::Open(path_).value();
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    std::filesystem::remove_all(folder_);
  }
  std::string Error() {
    const auto result = ImportModel({.directory = folder_, .path = folder_ + ".gguf"});
    EXPECT_FALSE(std::filesystem::exists(folder_ + ".gguf"));
    return result.ok() ? "" : std::string(result.status().message());
  }
  // Replaces keys of config.json beside text_config.
  void ChangeOuter(const json& changes) {
    const std::string path = folder_ + "/config.json";
    json config = json::parse(std::ifstream(path));
    config.update(changes);
    WriteText(path, config.dump());
  }
  // Renames the tensor in the file's header, to a name of the same length.
  void Rename(const std::string& from, const std::string& to) {
    const std::string path = folder_ + "/model.safetensors";
    std::ifstream in(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const std::size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    WriteText(path, bytes.replace(at, from.size(), to));
  }

  const std::string path_ = Folder("bad.gguf");
  const std::string folder_ = Folder("bad");
  std::unique_ptr<GgufFile> file_;
};

TEST_F(BadAssistant, SettingsOfOtherModels) {
  const std::pair<json, const char*> cases[] = {
      {{{"num_kv_shared_layers", 1}}, "num_kv_shared_layers is '1'; must be all 2 layers of an"},
      {{{"hidden_size_per_layer_input", 32}},
       "hidden_size_per_layer_input is '32'; must be 0 in an"},
      {{{"use_double_wide_mlp", true}}, "use_double_wide_mlp is 'true'; must be false in an"},
      {{{"enable_moe_block", true}}, "enable_moe_block is 'true'; mixtures of experts"},
      {{{"hidden_size", 64}}, "config.json needs"},
  };
  for (const auto& [config, error] : cases) {
    WriteHfDirectory(*file_, folder_, {.config = config});
    EXPECT_THAT(Error(), HasSubstr(error)) << config;
  }
  WriteHfDirectory(*file_, folder_);
  ChangeOuter({{"backbone_hidden_size", 100}});
  EXPECT_THAT(Error(), HasSubstr("tensor 'pre_projection.weight'"));
  EXPECT_THAT(Error(), HasSubstr("has shape [128, 512]; config.json needs [128, 200]"));
  ChangeOuter({{"backbone_hidden_size", "large"}});
  EXPECT_THAT(Error(), HasSubstr("backbone_hidden_size"));
}

TEST_F(BadAssistant, TensorsThatAreMissingOrUnknown) {
  WriteHfDirectory(*file_, folder_);
  Rename("\"post_projection.weight\"", "\"past_projection.weight\"");
  EXPECT_THAT(Error(), HasSubstr("post_projection.weight"));
  WriteHfDirectory(*file_, folder_);
  Rename("layers.1.self_attn.q_norm.weight", "layers.1.self_attn.k_normal.bias");
  EXPECT_THAT(Error(), HasSubstr("layers.1.self_attn.q_norm.weight"));
  WriteHfDirectory(*file_, folder_);
  const std::string path = folder_ + "/model.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(Error(), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace kvcache::import_assistant_test
