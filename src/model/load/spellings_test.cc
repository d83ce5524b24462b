// Files with other names of keys and tensors give the same logits as those with the names here.
#include "model/load/spellings.h"

#include <algorithm>
#include <set>

#include "model/load/key_reader.h"
#include "model/load/rewritten_testing.h"

namespace kvcache::spellings_test {
namespace {

using testing::NewTensor;

TEST(Spellings, NamesAreReplacedWhereTheyAre) {
  EXPECT_EQ(ArchitectureOf("gptoss"), "gpt-oss");
  EXPECT_EQ(ArchitectureOf("olmo3"), "olmo2");
  EXPECT_EQ(ArchitectureOf("llama"), "llama");
  EXPECT_EQ(FindSpelling("llama"), nullptr);
  const Spelling* const gptoss = FindSpelling("gptoss");
  EXPECT_EQ(OtherTensorName(gptoss, "blk.3.attn_output.bias"), "blk.3.attn_out.bias");
  EXPECT_EQ(OtherTensorName(gptoss, "blk.3.attn_sinks.weight"), "blk.3.attn_sinks");
  EXPECT_EQ(OtherTensorName(gptoss, "blk.3.attn_q.weight"), "");
  EXPECT_EQ(OtherTensorName(nullptr, "blk.3.attn_output.bias"), "");
  EXPECT_EQ(OtherKey(FindSpelling("mistral3"), "attention.temperature_scale"), "rope.scaling_beta");
  EXPECT_EQ(OtherKey(gptoss, "attention.temperature_scale"), "");
}

// A random model of an architecture, and how another program calls its parts.
struct Case {
  const char* architecture;
  const char* written;
  std::vector<std::string> left_out{};  // keys without the architecture
};

class RenamedFiles : public testing::RewrittenFiles {
 protected:
  // Returns the file's bytes with the other names, and counts these in renamed_.
  std::string Rename(const Case& c) {
    const Spelling* const spelling = FindSpelling(c.written);
    const std::string prefix = std::string(c.architecture) + ".";
    renamed_ = 0;
    GgufHeader header;
    std::set<std::string> names;
    header.SetString("general.architecture", c.written);
    for (GgufEntry entry : file_->entries()) {
      if (entry.key == "general.architecture" || entry.key == "general.alignment") continue;
      std::string name(entry.key);
      if (entry.key.starts_with(prefix)) {
        const std::string_view key = entry.key.substr(prefix.size());
        if (std::ranges::find(c.left_out, key) != c.left_out.end()) continue;
        const std::string_view other = OtherKey(spelling, key);
        renamed_ += other.empty() ? 0 : 1;
        name = std::string(c.written) + "." + std::string(other.empty() ? key : other);
      }
      entry.key = name;
      if (!names.insert(name).second) continue;  // two keys may be one there
      header.SetEntry(entry);
    }
    std::vector<NewTensor> tensors;
    for (const GgufTensor& tensor : file_->tensors()) {
      NewTensor& copy = tensors.emplace_back(testing::CopyOf(tensor));
      const std::string other = OtherTensorName(spelling, tensor.name);
      if (other.empty()) continue;
      copy.name = other;
      ++renamed_;
    }
    return testing::FileOf(std::move(header), tensors);
  }

  int renamed_ = 0;  // keys and tensors
};

TEST_F(RenamedFiles, GiveTheSameLogits) {
  const Case kCases[] = {
      {"gpt-oss", "gptoss", {"rope.scaling.type", "expert_feed_forward_length"}},
      {"gemma3n", "gemma3n"},
      {"lfm2", "lfm2"},
      {"mistral3", "mistral3"},
      {"nemotron_h_moe", "nemotron_h_moe"},
      {"olmo2", "olmo3"},
      {"qwen3next", "qwen3next"},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.written);
    make_model::Request request{.architecture = c.architecture, .type = DType::kF32};
    request.shape.rope_scaling = make_model::RopeScaling::kYarn;
    if (request.architecture == "nemotron_h_moe") {
      request.shape.layers = 3;
      request.shape.family.latent = 32;
    }
    if (request.architecture == "gpt-oss") request.shape.expert_ffn = request.shape.ffn;
    ASSERT_NO_FATAL_FAILURE(Make(request));
    const std::string bytes = Rename(c);
    if (std::string(c.written) != "olmo3") {
      EXPECT_GT(renamed_, 0);
    }
    const std::vector<float> expected = Logits(*file_, c.architecture);
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(LogitsOf(bytes, c.architecture), expected);
  }
}

// Errors have the file's names.
TEST_F(RenamedFiles, ErrorsNameWhatTheFileHas) {
  GgufHeader header;
  header.SetString("general.architecture", "mistral3");
  header.SetFloat32("mistral3.rope.scaling_beta", 0.1f);
  const std::string bytes = *header.Serialize();
  const auto file =
      std::move(GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m")).value();
  KeyReader keys(*file, "mistral3");
  EXPECT_EQ(keys.CheckAllUsed().message(), "mistral3.rope.scaling_beta is 0.1: not supported");
  EXPECT_EQ(*keys.FloatOr("attention.temperature_scale", 0.0), 0.1f);
  EXPECT_TRUE(keys.CheckAllUsed().ok());
  EXPECT_EQ(keys.Unsupported("attention.temperature_scale").message(),
            "mistral3.rope.scaling_beta is 0.1: not supported");
}

}  // namespace
}  // namespace kvcache::spellings_test
