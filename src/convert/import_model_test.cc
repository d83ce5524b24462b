#include "convert/import_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/strings.h"
#include "import/hf_writer.h"
#include "make_model/make_model.h"

namespace kvcache::import_model_test {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string name;
  make_model::Request request;
  HfStyle style = {};
};

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}

std::unique_ptr<GgufFile> Make(const Case& each) {
  const std::string path = StrCat(::testing::TempDir(), "import_made_", each.name, ".gguf");
  const Status status = make_model::MakeModel(each.request, path);
  EXPECT_TRUE(status.ok()) << status.message();
  return GgufFile::Open(path).value();
}

std::string Directory(const Case& each) {
  return StrCat(::testing::TempDir(), "import_", each.name);
}

std::unique_ptr<GgufFile> Import(const std::string& directory,
                                 std::optional<WeightScheme> scheme = {}) {
  const std::string path = directory + ".gguf";
  const auto imported = ImportModel({.directory = directory, .path = path, .scheme = scheme});
  EXPECT_TRUE(imported.ok()) << imported.status().message();
  if (!imported.ok()) return nullptr;
  return GgufFile::Open(path).value();
}

// Returns the bytes after the way to Hugging Face's layout and back. A norm loses bits if the
// layout's norms lack a 1, and a rate if they are logarithms.
std::string Expected(const GgufFile& made, const GgufTensor& tensor) {
  std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  const std::string name(tensor.name);
  const bool less_one = HfNormsLackOne(std::string(*made.GetString("general.architecture")), name);
  if (!less_one && !name.ends_with("ssm_a")) return bytes;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(float));
    const float published = less_one ? value - 1.0f : std::log(-value);
    value = less_one ? published + 1.0f : static_cast<float>(-std::exp(double{published}));
    std::memcpy(bytes.data() + at, &value, sizeof(float));
  }
  return bytes;
}

void ExpectEqualTensors(const GgufFile& made, const GgufFile& imported) {
  EXPECT_EQ(imported.tensors().size(), made.tensors().size());
  for (const GgufTensor& tensor : made.tensors()) {
    const GgufTensor* other = imported.FindTensor(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(other->type, tensor.type) << tensor.name;
    EXPECT_EQ(other->dims, tensor.dims) << tensor.name;
    ASSERT_EQ(other->bytes.size(), tensor.bytes.size()) << tensor.name;
    const std::string bytes = Expected(made, tensor);
    EXPECT_EQ(std::memcmp(other->bytes.data(), bytes.data(), bytes.size()), 0) << tensor.name;
  }
}

// Keys that depend on the program that wrote the file, not on the model.
// Gemma 4's vocabulary has merges, and make_model's has scores.
bool IsOfTheWriter(const GgufFile& file, std::string_view key) {
  const std::string_view architecture = *file.GetString("general.architecture");
  const bool has_words = architecture.find("bert") != architecture.npos;  // WordPiece's
  if (key == "tokenizer.ggml.token_type_count") return false;
  if (architecture == "gemma-embedding" || file.Find("qwen3.pooling_type") != nullptr) {
    // Embeddings have separators too.
    if (key.starts_with("tokenizer.ggml.add_sep") || key.starts_with("tokenizer.ggml.sep")) {
      return true;
    }
  }
  if ((architecture.starts_with("gemma4") || has_words) && key.starts_with("tokenizer.")) {
    return true;
  }
  return key == "general.name" || key == "general.quantization_version";
}

void ExpectEqualMetadata(const GgufFile& made, const GgufFile& imported) {
  std::set<std::string> keys;
  for (const GgufEntry& entry : imported.entries()) {
    if (!IsOfTheWriter(made, entry.key)) keys.emplace(entry.key);
  }
  for (const GgufEntry& entry : made.entries()) {
    if (IsOfTheWriter(made, entry.key)) continue;
    const GgufEntry* other = imported.Find(entry.key);
    ASSERT_NE(other, nullptr) << entry.key;
    EXPECT_EQ(other->type, entry.type) << entry.key;
    ASSERT_EQ(other->bytes.size(), entry.bytes.size()) << entry.key;
    EXPECT_EQ(std::memcmp(other->bytes.data(), entry.bytes.data(), entry.bytes.size()), 0)
        << entry.key;
    keys.erase(std::string(entry.key));
  }
  EXPECT_THAT(keys, ::testing::IsEmpty());
}

class ImportModelTest : public ::testing::TestWithParam<Case> {};

// A GGUF file, written in Hugging Face's layout by code of its own and imported, is the same again.
TEST_P(ImportModelTest, EqualsTheModelThatWasWritten) {
  const auto made = Make(GetParam());
  WriteHfDirectory(*made, Directory(GetParam()), GetParam().style);
  const auto imported = Import(Directory(GetParam()));
  ASSERT_NE(imported, nullptr);
  ExpectEqualTensors(*made, *imported);
  ExpectEqualMetadata(*made, *imported);
}

make_model::Request Request(const std::string& architecture, DType type = DType::kF32) {
  make_model::Request request;
  request.architecture = architecture;
  request.type = type;
  request.shape.vocab = 601;
  return request;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  cases.push_back({"llama", Request("llama")});
  cases.push_back({"llama_bf16", Request("llama", DType::kBF16), {.shards = 3, .pairs = true}});
  cases.push_back({"llama_tied", Request("llama", DType::kF16), {.parameters = true}});
  cases.back().request.shape.output = make_model::Output::kTied;
  cases.push_back({"llama_scaled", Request("llama")});
  cases.back().request.shape.rope_scaling = make_model::RopeScaling::kLlama3;
  cases.push_back({"llama_scaled_new", Request("llama"), {.parameters = true}});
  cases.back().request.shape.rope_scaling = make_model::RopeScaling::kLlama3;
  cases.push_back({"llama_linear", Request("llama"), {.text_config = true}});
  cases.back().request.shape.rope_scaling = make_model::RopeScaling::kLinear;
  cases.push_back({"mistral", Request("llama", DType::kBF16)});
  cases.back().request.shape.window = 100;
  cases.push_back({"mixtral", Request("llama")});
  cases.back().request.shape.experts = 4;
  cases.back().request.shape.expert_ffn = cases.back().request.shape.ffn;
  cases.push_back({"qwen2", Request("qwen2", DType::kBF16)});
  cases.push_back({"qwen2_yarn", Request("qwen2"), {.parameters = true}});
  cases.back().request.shape.rope_scaling = make_model::RopeScaling::kYarn;
  cases.push_back({"qwen3", Request("qwen3", DType::kBF16)});
  cases.push_back({"qwen3moe", Request("qwen3moe", DType::kBF16)});
  cases.back().request.shape.experts = 4;
  cases.push_back({"qwen3next", Request("qwen3next", DType::kBF16)});
  cases.back().request.shape.experts = 4;
  cases.push_back({"qwen3next_head", Request("qwen3next", DType::kBF16), {.text_config = true}});
  cases.back().request.shape.experts = 4;
  cases.back().request.shape.family.nextn_layers = 1;
  cases.push_back({"qwen3next_groups", Request("qwen3next"), {.shards = 4, .parameters = true}});
  cases.back().request.shape.experts = 3;
  cases.back().request.shape.layers = 4;
  cases.back().request.shape.family.state_groups = 4;
  cases.back().request.shape.family.attention_step = 4;
  cases.push_back({"gemma2", Request("gemma2", DType::kBF16)});
  cases.back().request.shape.window = 100;
  cases.push_back({"gemma2_pattern", Request("gemma2"), {.pairs = true}});
  cases.back().style.config = {{"layer_types", {"sliding_attention", "sliding_attention"}}};
  cases.back().request.shape.window = 100;
  cases.back().request.shape.window_pattern = 0;
  cases.push_back({"gemma3", Request("gemma3", DType::kBF16), {.text_config = true}});
  cases.back().request.shape.rope_scaling = make_model::RopeScaling::kLinear;
  cases.back().request.shape.window = 100;
  cases.push_back({"gemma4", Request("gemma4", DType::kBF16)});
  cases.back().request.shape.layers = 4;
  cases.push_back({"gemma4_own", Request("gemma4"), {.text_config = true}});
  cases.back().request.shape.layers = 3;
  for (const auto& [name, pooling] :
       {std::pair{"bert", 2}, std::pair{"nomic-bert", 1}, std::pair{"modern-bert", 2},
        std::pair{"gemma-embedding", 1}, std::pair{"qwen3", 3}}) {
    std::string label(name);
    std::ranges::replace(label, '-', '_');
    cases.push_back({label + "_pooled", Request(name)});
    cases.back().request.shape.family.pooling = pooling;
    cases.back().request.shape.kv_heads = label == "qwen3" || label == "gemma_embedding" ? 2 : 4;
    if (label == "modern_bert" || label == "gemma_embedding") {
      cases.back().request.shape.window = 100;
      cases.back().request.shape.layers = 4;
    }
    if (label == "gemma_embedding") cases.back().request.shape.family.dense = 96;
  }
  cases.push_back({"bert_bf16", Request("bert", DType::kBF16), {.shards = 2}});
  cases.back().request.shape.kv_heads = 4;
  cases.push_back({"xlm_roberta", Request("bert"), {.first_positions = 2}});
  cases.back().request.shape.kv_heads = 4;
  cases.back().request.shape.family.pooling = 2;
  for (const int first : {0, 2}) {
    cases.push_back({first == 0 ? "bert_rank" : "xlm_roberta_rank",
                     Request("bert"),
                     {.first_positions = first}});
    cases.back().request.shape.kv_heads = 4;
    cases.back().request.shape.family.pooling = 4;
    cases.back().request.shape.family.labels = 1 + first;
  }
  cases.push_back({"modern_bert_rank", Request("modern-bert")});
  cases.back().request.shape.kv_heads = 4;
  cases.back().request.shape.window = 64;
  cases.back().request.shape.window_pattern = 2;
  cases.back().request.shape.family.pooling = 4;
  cases.back().request.shape.family.labels = 1;
  cases.push_back({"gemma4_assistant", Request("gemma4-assistant", DType::kBF16)});
  cases.back().request.shape.layers = 4;
  cases.back().request.shape.window_pattern = 4;
  cases.push_back({"gemma4_assistant_small", Request("gemma4-assistant"), {.shards = 2}});
  cases.back().request.shape.family.target_size = 96;
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, ImportModelTest, ::testing::ValuesIn(Cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace kvcache::import_model_test
