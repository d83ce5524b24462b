#include "model/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/gguf_writer.h"

namespace kvcache {
namespace {

using testing::HasSubstr;

// A llama of two layers without most of its tensors: enough to be described.
GgufHeader LlamaHeader() {
  GgufHeader header;
  header.SetString("general.architecture", "llama");
  header.SetString("general.name", "small\x1b[31m");
  header.SetUint32("llama.block_count", 2);
  header.SetUint32("llama.context_length", 128);
  header.SetUint32("llama.embedding_length", 64);
  header.SetUint32("llama.feed_forward_length", 96);
  header.SetUint32("llama.attention.head_count", 4);
  header.SetInts("llama.attention.head_count_kv", std::vector<std::int32_t>{2, 4});
  header.SetFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  header.SetStrings("tokens", std::vector<std::string>(20, "x"));
  header.AddTensor("token_embd.weight", GgmlType::kQ8_0, {64, 10});
  header.AddTensor("output_norm.weight", GgmlType::kF32, {64});
  header.AddTensor("blk.0.attn_q.weight", static_cast<GgmlType>(10), {256});
  return header;
}

nlohmann::json Describe(const GgufHeader& header, const InspectOptions& options = {}) {
  std::string bytes = *header.Serialize();
  bytes.resize(bytes.size() + header.data_bytes());
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return DescribeModelFile(**file, options);
}

TEST(Inspect, DescribesTheFile) {
  const nlohmann::json d = Describe(LlamaHeader());
  EXPECT_EQ(d["path"], "m.gguf");
  EXPECT_EQ(d["format"], "GGUF 3");
  EXPECT_EQ(d["architecture"], "llama");
  EXPECT_EQ(d["supported"], true);
  EXPECT_EQ(d["parameters"], 640 + 64 + 256);
  EXPECT_EQ(d["metadata"]["llama.block_count"], 2);
  EXPECT_EQ(d["metadata"]["tokens"]["count"], 20);
  EXPECT_EQ(d["metadata"]["tokens"]["array"], "string");
  EXPECT_EQ(d["metadata"]["tokens"]["first"].size(), 8u);
  EXPECT_EQ(d["tensors"][0]["dims"], nlohmann::json({64, 10}));
  EXPECT_EQ(d["types"].size(), 3u);
  EXPECT_EQ(d["types"][0], (nlohmann::json{{"type", "q8_0"},
                                           {"served", true},
                                           {"tensors", 1},
                                           {"parameters", 640},
                                           {"bytes", 680}}));
  EXPECT_EQ(d["types"][2]["served"], false);
}

TEST(Inspect, CountsTheCacheLayerByLayer) {
  const nlohmann::json f16 = Describe(LlamaHeader())["cache"];
  EXPECT_EQ(f16["layers"][0]["bytes_per_token"], 2 * 16 * 2 * 2);
  EXPECT_EQ(f16["layers"][1]["bytes_per_token"], 4 * 16 * 2 * 2);
  EXPECT_EQ(f16["bytes_per_token"], 128 + 256);
  const InspectOptions mixed = {.k_type = DType::kF32, .v_type = DType::kF16};
  EXPECT_EQ(Describe(LlamaHeader(), mixed)["cache"]["bytes_per_token"], 192 + 384);
}

TEST(Inspect, SaysHowPositionsAreStretchedAndWhichExpertsThereAre) {
  const nlohmann::json plain = Describe(LlamaHeader());
  EXPECT_EQ(plain["rope"],
            (nlohmann::json{{"scaling", "none"}, {"factor", 1.0}, {"original_context", 128}}));
  EXPECT_EQ(plain["experts"], nullptr);
  GgufHeader header = LlamaHeader();
  header.SetString("llama.rope.scaling.type", "yarn");
  header.SetFloat32("llama.rope.scaling.factor", 4.0f);
  header.SetUint32("llama.rope.scaling.original_context_length", 32);
  header.SetUint32("llama.expert_count", 8);
  header.SetUint32("llama.expert_used_count", 2);
  const nlohmann::json d = Describe(header);
  EXPECT_EQ(d["rope"],
            (nlohmann::json{{"scaling", "yarn"}, {"factor", 4.0}, {"original_context", 32}}));
  EXPECT_EQ(d["experts"], (nlohmann::json{{"count", 8}, {"used", 2}, {"ffn", 96}}));
  EXPECT_THAT(DescriptionText(d, InspectDetail::kSummary),
              HasSubstr("  positions stretched: yarn, 4 times, first trained for 32\n"
                        "  8 experts of 96, 2 for each token\n"));
  GgufHeader other = LlamaHeader();
  other.SetString("llama.rope.scaling.type", "longrope");
  EXPECT_EQ(Describe(other)["rope"]["error"], "llama.rope.scaling.type is 'longrope': not served");
}

TEST(Inspect, SaysWhyTheCacheIsNotKnown) {
  EXPECT_EQ(Describe(GgufHeader())["cache"]["error"], "metadata 'general.architecture' is missing");
  GgufHeader other;
  other.SetString("general.architecture", "mamba");
  EXPECT_EQ(Describe(other)["cache"]["error"], "architecture 'mamba' is not supported");
  GgufHeader empty;
  empty.SetString("general.architecture", "llama");
  EXPECT_EQ(Describe(empty)["cache"]["error"],
            "metadata 'llama.block_count' is missing, expected an integer");
}

TEST(Inspect, RefusesCacheTypesWhoseBlocksDoNotFit) {
  const nlohmann::json d = Describe(LlamaHeader(), {.k_type = DType::kQ8_0, .v_type = DType::kF16});
  EXPECT_EQ(d["cache"]["error"],
            "heads of 16 values are not whole blocks of 32 for a cache in q8_0");
  EXPECT_THAT(DescriptionText(d, InspectDetail::kSummary), HasSubstr("cache\n  not known: heads"));
}

TEST(Inspect, DescribesTheTokenizer) {
  EXPECT_EQ(Describe(LlamaHeader())["tokenizer"], nullptr);
  GgufHeader header = LlamaHeader();
  header.SetString("tokenizer.ggml.model", "gpt2");
  header.SetString("tokenizer.ggml.pre", "llama-bpe");
  header.SetStrings("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab"});
  header.SetStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  header.SetUint32("tokenizer.ggml.bos_token_id", 2);
  const nlohmann::json d = Describe(header);
  EXPECT_EQ(d["tokenizer"]["kind"], "byte-level BPE (llama-bpe)");
  EXPECT_EQ(d["tokenizer"]["tokens"], 3);
  EXPECT_EQ(d["tokenizer"]["bos"], 2);
  EXPECT_EQ(d["tokenizer"]["eos"], nullptr);
  EXPECT_EQ(d["tokenizer"]["add_bos"], true);
  EXPECT_THAT(
      DescriptionText(d, InspectDetail::kSummary),
      HasSubstr("\ntokenizer\n  byte-level BPE (llama-bpe), 3 tokens, bos 2; bos in front\n"));

  GgufHeader unknown = LlamaHeader();
  unknown.SetString("tokenizer.ggml.model", "gpt2");
  unknown.SetString("tokenizer.ggml.pre", "kling\x1b[31mon");
  unknown.SetStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  unknown.SetStrings("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  const nlohmann::json error = Describe(unknown);
  const std::string text = DescriptionText(error, InspectDetail::kSummary);
  EXPECT_THAT(text, HasSubstr("tokenizer\n  not known: pre-tokenizer 'kling"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Inspect, TextIsForPeople) {
  const std::string text = DescriptionText(Describe(LlamaHeader()), InspectDetail::kTensors);
  EXPECT_THAT(text, HasSubstr("m.gguf\n  llama, small\\x1b[31m\n  960 parameters"));
  EXPECT_THAT(text, HasSubstr("cache, K in f16 and V in f16\n  384 bytes per token; 1 GiB holds "
                              "2,796,202 tokens\n"));
  EXPECT_THAT(text, HasSubstr("  layers 0 to 0: causal, 2 KV heads of 16 + 16, 128 bytes"));
  EXPECT_THAT(text, HasSubstr("20 × string: 'x', 'x'"));
  EXPECT_THAT(text, HasSubstr("  q2_k      1 tensors, 256 parameters, 84 bytes (type not "
                              "supported)\n"));
  EXPECT_THAT(text, HasSubstr("token_embd.weight"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const std::string summary = DescriptionText(Describe(LlamaHeader()), InspectDetail::kSummary);
  EXPECT_EQ(summary.find("token_embd.weight"), std::string::npos);
}

}  // namespace
}  // namespace kvcache
