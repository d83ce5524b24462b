#include "convert/import_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "base/strings.h"
#include "import/hf_writer.h"
#include "make_model/make_model.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

struct Case {
  std::string name;
  make_model::Request request;
  HfStyle style = {};
};

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}

std::unique_ptr<GgufFile> Make(const Case& each) {
  const std::string path = StrCat(testing::TempDir(), "import_made_", each.name, ".gguf");
  const Status status = make_model::MakeModel(each.request, path);
  EXPECT_TRUE(status.ok()) << status.message();
  return GgufFile::Open(path).value();
}

std::string Directory(const Case& each) {
  return StrCat(testing::TempDir(), "import_", each.name);
}

std::unique_ptr<GgufFile> Import(const std::string& directory,
                                 std::optional<WeightScheme> scheme = {}) {
  const std::string path = directory + ".gguf";
  const auto imported = ImportModel({.directory = directory, .path = path, .scheme = scheme});
  EXPECT_TRUE(imported.ok()) << imported.status().message();
  if (!imported.ok()) return nullptr;
  return GgufFile::Open(path).value();
}

void ExpectEqualTensors(const GgufFile& made, const GgufFile& imported) {
  EXPECT_EQ(imported.tensors().size(), made.tensors().size());
  for (const GgufTensor& tensor : made.tensors()) {
    const GgufTensor* other = imported.FindTensor(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(other->type, tensor.type) << tensor.name;
    EXPECT_EQ(other->dims, tensor.dims) << tensor.name;
    ASSERT_EQ(other->bytes.size(), tensor.bytes.size()) << tensor.name;
    EXPECT_EQ(std::memcmp(other->bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0)
        << tensor.name;
  }
}

// Keys that depend on the program that wrote the file, not on the model.
bool IsOfTheWriter(std::string_view key) {
  return key == "general.name" || key == "general.quantization_version";
}

void ExpectEqualMetadata(const GgufFile& made, const GgufFile& imported) {
  std::set<std::string> keys;
  for (const GgufEntry& entry : imported.entries()) keys.emplace(entry.key);
  for (const GgufEntry& entry : made.entries()) {
    if (IsOfTheWriter(entry.key)) continue;
    const GgufEntry* other = imported.Find(entry.key);
    ASSERT_NE(other, nullptr) << entry.key;
    EXPECT_EQ(other->type, entry.type) << entry.key;
    ASSERT_EQ(other->bytes.size(), entry.bytes.size()) << entry.key;
    EXPECT_EQ(std::memcmp(other->bytes.data(), entry.bytes.data(), entry.bytes.size()), 0)
        << entry.key;
    keys.erase(std::string(entry.key));
  }
  keys.erase("general.name");
  EXPECT_THAT(keys, testing::IsEmpty());
}

class ImportModelTest : public testing::TestWithParam<Case> {};

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
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, ImportModelTest, testing::ValuesIn(Cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace kvcache
