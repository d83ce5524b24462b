// Factors on matrices' products, which files of NVFP4 have. Powers of two are exact, so a file whose weights
// are divided by them gives the same bits.
#include "model/load/weights.h"

#include <cmath>

#include "model/load/rewritten_testing.h"

namespace kvcache::weights_test {
namespace {

using testing::NewTensor;

class ScaledWeights : public testing::RewrittenFiles {
 protected:
  static NewTensor Floats(std::string name, const std::vector<float>& values) {
    NewTensor tensor{
        std::move(name), GgmlType::kF32, {static_cast<std::int64_t>(values.size())}, {}};
    tensor.bytes.resize(values.size() * sizeof(float));
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    return tensor;
  }

  // Returns the file with divided weights and their factors; `taken` says which matrices have one.
  std::string Divided(const std::function<bool(std::string_view)>& taken) {
    GgufHeader header;
    for (const GgufEntry& entry : file_->entries()) {
      if (entry.key != "general.alignment") header.SetEntry(entry);
    }
    std::vector<NewTensor> tensors;
    for (const GgufTensor& tensor : file_->tensors()) {
      NewTensor& copy = tensors.emplace_back(testing::CopyOf(tensor));
      if (tensor.rank < 2 || !taken(tensor.name)) continue;
      const auto matrices = static_cast<std::size_t>(tensor.dims[2]);
      const std::size_t each = tensor.bytes.size() / sizeof(float) / matrices;
      std::vector<float> scales;
      for (std::size_t m = 0; m < matrices; ++m) {
        scales.push_back(std::ldexp(1.0f, static_cast<int>(m + tensors.size()) % 7 - 3));
        for (std::size_t i = m * each; i < (m + 1) * each; ++i) {
          float value;
          std::memcpy(&value, copy.bytes.data() + i * sizeof(float), sizeof(float));
          value /= scales.back();
          std::memcpy(copy.bytes.data() + i * sizeof(float), &value, sizeof(float));
        }
      }
      const std::string name(tensor.name.substr(0, tensor.name.size() - 7));  // without ".weight"
      tensors.push_back(Floats(name + ".scale", scales));
      tensors.push_back(Floats(name + ".input_scale", scales));
    }
    return testing::FileOf(std::move(header), tensors);
  }
};

TEST_F(ScaledWeights, GiveTheLogitsOfWholeOnes) {
  for (const char* const name : {"llama", "qwen3moe", "phi3", "nemotron_h_moe"}) {
    SCOPED_TRACE(name);
    make_model::Request request{.architecture = name, .type = DType::kF32};
    if (request.architecture == "nemotron_h_moe") request.shape.layers = 3;
    ASSERT_NO_FATAL_FAILURE(Make(request));
    const std::vector<float> expected = Logits(*file_, name);
    ASSERT_FALSE(expected.empty());
    const std::string divided = Divided([](std::string_view tensor) {
      return tensor != "token_embd.weight" && !tensor.ends_with("conv1d.weight") &&
             !tensor.ends_with("norm.weight") && tensor.ends_with(".weight");
    });
    EXPECT_EQ(LogitsOf(divided, name), expected);
  }
}

// Tokens behind the table of a layer's inputs take its first row.
TEST_F(ScaledWeights, TablesOfInputsMayBeShort) {
  constexpr std::size_t kRows = 50;  // two of the tokens are behind them
  ASSERT_NO_FATAL_FAILURE(Make({.architecture = "gemma3n", .type = DType::kF32}));
  const auto with_table = [&](const std::function<void(NewTensor&, std::size_t)>& change) {
    GgufHeader header;
    for (const GgufEntry& entry : file_->entries()) {
      if (entry.key != "general.alignment") header.SetEntry(entry);
    }
    std::vector<NewTensor> tensors;
    for (const GgufTensor& tensor : file_->tensors()) {
      NewTensor& copy = tensors.emplace_back(testing::CopyOf(tensor));
      if (tensor.name != "per_layer_token_embd.weight") continue;
      change(copy, copy.bytes.size() / static_cast<std::size_t>(copy.dims[1]));
    }
    return LogitsOf(testing::FileOf(std::move(header), tensors), "gemma3n");
  };
  const std::vector<float> short_table = with_table([](NewTensor& table, std::size_t row_bytes) {
    table.dims[1] = kRows;
    table.bytes.resize(kRows * row_bytes);
  });
  const std::vector<float> first_rows = with_table([](NewTensor& table, std::size_t row_bytes) {
    for (std::size_t at = kRows * row_bytes; at < table.bytes.size(); at += row_bytes) {
      std::memcpy(table.bytes.data() + at, table.bytes.data(), row_bytes);
    }
  });
  ASSERT_FALSE(short_table.empty());
  EXPECT_EQ(short_table, first_rows);
  EXPECT_NE(short_table, Logits(*file_, "gemma3n"));
}

TEST_F(ScaledWeights, TheEmbeddingHasNoFactor) {
  ASSERT_NO_FATAL_FAILURE(Make({.architecture = "llama", .type = DType::kF32}));
  const std::string divided =
      Divided([](std::string_view tensor) { return tensor == "token_embd.weight"; });
  const auto file = GgufFile::Parse(std::as_bytes(std::span(divided.data(), divided.size())), "m");
  ASSERT_TRUE(file.ok());
  const auto model = LoadModel(**file, *backend_);
  EXPECT_EQ(model.status().message(),
            "m: tensor 'token_embd.scale' is unknown: this architecture does not use it");
}

}  // namespace
}  // namespace kvcache::weights_test
