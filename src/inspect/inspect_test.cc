#include "inspect/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"
#include "make_model/architecture.h"

namespace kvcache::inspect_test {
namespace {

using ::testing::HasSubstr;

using make_model::TensorSpec;

// Returns the header of a llama of two layers, the second with more KV heads, after `change`.
GgufHeader LlamaHeader(const std::function<void(GgufHeader&)>& change = {}) {
  const make_model::Shape shape{.layers = 2,
                                .hidden_size = 64,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .ffn = 96,
                                .vocab = 10,
                                .output = make_model::Output::kTied,
                                .context = 128};
  const auto* const family = *make_model::FindArchitecture("llama");
  GgufHeader header;
  header.SetString("general.architecture", "llama");
  header.SetString("general.name", "small\x1b[31m");
  header.SetUint32("llama.block_count", 2);
  header.SetUint32("llama.context_length", 128);
  header.SetUint32("llama.embedding_length", 64);
  header.SetUint32("llama.feed_forward_length", 96);
  header.SetUint32("llama.attention.head_count", 4);
  header.SetFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  header.SetInts("llama.attention.head_count_kv", std::vector<std::int32_t>{2, 4});
  header.SetStrings("tokens", std::vector<std::string>(20, "x"));
  if (change) change(header);
  for (TensorSpec& spec : family->tensors(shape)) {
    if (spec.name == "blk.1.attn_k.weight" || spec.name == "blk.1.attn_v.weight") spec.dims[1] = 64;
    const bool table = spec.name == "token_embd.weight";
    header.AddTensor(spec.name, table ? GgmlType::kQ8_0 : GgmlType::kF32, spec.dims);
  }
  return header;
}

// Returns print(the description of a file with this header and zeros as weights).
template <typename Print>
auto Printed(const GgufHeader& header, const InspectOptions& options, const Print& print) {
  std::string bytes = *header.Serialize();
  bytes.resize(bytes.size() + header.data_bytes());
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return print(DescribeModelFile(**file, options));
}

nlohmann::json Describe(const GgufHeader& header, const InspectOptions& options = {}) {
  return Printed(header, options, DescriptionJson);
}

std::string Text(const GgufHeader& header, InspectDetail detail = InspectDetail::kSummary,
                 const InspectOptions& options = {}) {
  return Printed(header, options, [detail](const ModelDescription& description) {
    return DescriptionText(description, detail);
  });
}

TEST(Inspect, DescribesTheFile) {
  const nlohmann::json d = Describe(LlamaHeader());
  EXPECT_EQ(d["path"], "m.gguf");
  EXPECT_EQ(d["format"], "GGUF 3");
  EXPECT_EQ(d["architecture"], "llama");
  EXPECT_EQ(d["supported"], true);
  const std::int64_t ffn = 3 * 64 * 96, norms = 5 * 64, queries = 2 * 2 * 64 * 64;
  const std::int64_t keys = 2 * 64 * (32 + 64);
  EXPECT_EQ(d["parameters"], 640 + 2 * ffn + norms + queries + keys);
  EXPECT_EQ(d["metadata"]["llama.block_count"], 2);
  EXPECT_EQ(d["metadata"]["tokens"]["count"], 20);
  EXPECT_EQ(d["metadata"]["tokens"]["array"], "string");
  EXPECT_EQ(d["metadata"]["tokens"]["first"].size(), 8u);
  EXPECT_EQ(d["tensors"][0]["dims"], nlohmann::json({64, 10}));
  ASSERT_EQ(d["types"].size(), 2u);
  EXPECT_EQ(d["types"][1], (nlohmann::json{{"type", "q8_0"},
                                           {"served", true},
                                           {"tensors", 1},
                                           {"parameters", 640},
                                           {"bytes", 680}}));
}

TEST(Inspect, CountsTheCacheLayerByLayer) {
  const nlohmann::json f16 = Describe(LlamaHeader())["cache"];
  EXPECT_EQ(f16["layers"][0]["bytes_per_token"], 2 * 16 * 2 * 2);
  EXPECT_EQ(f16["layers"][1]["bytes_per_token"], 4 * 16 * 2 * 2);
  EXPECT_EQ(f16["bytes_per_token"], 128 + 256);
  EXPECT_EQ(f16["bytes_per_sequence"], 0);
  const InspectOptions mixed = {.k_type = DType::kF32, .v_type = DType::kF16};
  EXPECT_EQ(Describe(LlamaHeader(), mixed)["cache"]["bytes_per_token"], 192 + 384);
}

TEST(Inspect, CountsWindowsBySequence) {
  const GgufHeader header =
      LlamaHeader([](GgufHeader& h) { h.SetUint32("llama.attention.sliding_window", 20); });
  const nlohmann::json d = Describe(header);
  EXPECT_EQ(d["cache"]["bytes_per_token"], 0);
  EXPECT_EQ(d["cache"]["bytes_per_sequence"], 2 * 20 * (128 + 256));
  EXPECT_EQ(d["cache"]["layers"][1]["kind"], "sliding");
  EXPECT_THAT(Text(header),
              HasSubstr("  0 bytes per token, and 15.0 KiB for each sequence\n"
                        "  sliding, window 20, 40 kept, 2 KV heads of 16 + 16, 5,120 bytes per "
                        "layer and sequence\n    layers 0\n"));
}

// The layers of one file differ in kind, window or heads.
TEST(Inspect, CountsLayersOfSeveralKinds) {
  const auto file_of = [](std::string_view name, int layers) {
    make_model::Shape shape;
    shape.layers = layers;
    shape.experts = 4;
    const auto* const family = *make_model::FindArchitecture(name);
    GgufHeader header;
    header.SetString("general.architecture", name);
    family->add_metadata(shape, header);
    for (const make_model::TensorSpec& spec : family->tensors(shape)) {
      header.AddTensor(spec.name, GgmlType::kF32, spec.dims);
    }
    return header;
  };
  EXPECT_THAT(
      Text(file_of("llama4", 4)),
      HasSubstr("  chunked, chunk 8,192, 2 KV heads of 32 + 32, 256 bytes per layer and token\n"
                "    layers 0 1 2\n"
                "  full, 2 KV heads of 32 + 32, 256 bytes per layer and token\n    layers 3\n"));
  const nlohmann::json latent = Describe(file_of("deepseek2", 2));
  EXPECT_EQ(latent["cache"]["bytes_per_token"], 2 * 96 * 2);  // K alone, f16
  EXPECT_THAT(
      Text(file_of("deepseek2", 2)),
      HasSubstr("  full, 1 KV heads of 96, values within: 64, 192 bytes per layer and token\n"
                "    layers 0 1\n"));
  const InspectOptions blocks = {.k_type = DType::kQ8_0, .v_type = DType::kQ8_0};
  EXPECT_EQ(Describe(file_of("deepseek2", 2), blocks)["cache"]["bytes_per_token"], 2 * 3 * 34);
  EXPECT_EQ(Describe(file_of("deepseek2", 2), {.k_type = DType::kQ4_0})["cache"]["error"],
            "layer 0 cannot have its values within its keys in a cache with K in q4_0; K in q8_0, "
            "f16, bf16 or f32 holds them");
  EXPECT_EQ(Describe(file_of("llama", 2), blocks)["cache"]["bytes_per_token"], 2 * 2 * 2 * 34);
}

TEST(Inspect, CountsStatesBySequence) {
  const make_model::Shape shape{.layers = 3, .hidden_size = 64, .kv_heads = 2, .head_dim = 16};
  const auto* const family = *make_model::FindArchitecture("lfm2");
  GgufHeader header;
  header.SetString("general.architecture", "lfm2");
  family->add_metadata(shape, header);
  for (TensorSpec& spec : family->tensors(shape)) {
    header.AddTensor(spec.name, GgmlType::kF32, spec.dims);
  }
  const nlohmann::json d = Describe(header);
  EXPECT_EQ(d["cache"]["bytes_per_token"], 2 * 16 * 2 * 2);
  EXPECT_EQ(d["cache"]["bytes_per_sequence"], 2 * 2 * 64 * 4) << "two inputs of two layers";
  EXPECT_EQ(d["rope"]["scaling"], "none");
  EXPECT_THAT(Text(header),
              HasSubstr("  recurrent, 512 bytes per layer and sequence\n    layers 0 2\n"));
}

TEST(Inspect, DescribesRopeScalingAndExperts) {
  const nlohmann::json plain = Describe(LlamaHeader());
  EXPECT_EQ(plain["rope"],
            (nlohmann::json{{"scaling", "none"}, {"factor", 1.0}, {"original_context", 128}}));
  EXPECT_EQ(plain["experts"], nullptr);
  const GgufHeader scaled = LlamaHeader([](GgufHeader& header) {
    header.SetString("llama.rope.scaling.type", "yarn");
    header.SetFloat32("llama.rope.scaling.factor", 4.0f);
    header.SetUint32("llama.rope.scaling.original_context_length", 32);
    header.SetUint32("llama.expert_count", 8);
    header.SetUint32("llama.expert_used_count", 2);
  });
  const nlohmann::json d = Describe(scaled);
  EXPECT_EQ(d["rope"],
            (nlohmann::json{{"scaling", "yarn"}, {"factor", 4.0}, {"original_context", 32}}));
  EXPECT_EQ(d["experts"], (nlohmann::json{{"count", 8}, {"used", 2}, {"ffn", 96}}));
  EXPECT_THAT(Text(scaled), HasSubstr("  positions stretched: yarn, 4 times, first trained for 32\n"
                                      "  8 experts of 96, 2 for each token\n"));
  const GgufHeader other =
      LlamaHeader([](GgufHeader& h) { h.SetString("llama.rope.scaling.type", "longrope"); });
  EXPECT_EQ(Describe(other)["rope"]["error"],
            "llama.rope.scaling.type is 'longrope': not supported");
}

TEST(Inspect, ExplainsWhyTheModelCannotBeLoaded) {
  const auto error = [](const GgufHeader& header) {
    const nlohmann::json d = Describe(header);
    EXPECT_EQ(d["supported"], false);
    return d["cache"]["error"].get<std::string>();
  };
  EXPECT_THAT(error(GgufHeader()), HasSubstr("metadata 'general.architecture' is missing"));
  GgufHeader other;
  other.SetString("general.architecture", "clip");
  EXPECT_THAT(error(other), HasSubstr("architecture 'clip' is not known"));
  GgufHeader empty;
  empty.SetString("general.architecture", "llama");
  EXPECT_THAT(error(empty),
              HasSubstr("metadata 'llama.block_count' is missing, expected an integer"));
  GgufHeader more = LlamaHeader();
  more.AddTensor("blk.0.attn_q.strange", GgmlType::kF32, {256});
  EXPECT_THAT(error(more), HasSubstr("tensor 'blk.0.attn_q.strange' is unknown"));
  GgufHeader foreign = LlamaHeader();
  foreign.AddTensor("blk.0.attn_q.bias", static_cast<GgmlType>(15), {256});
  EXPECT_EQ(Describe(foreign)["types"][2]["served"], false);
}

TEST(Inspect, RejectsCacheTypesWhoseBlocksDoNotFit) {
  const InspectOptions options = {.k_type = DType::kQ8_0, .v_type = DType::kF16};
  const nlohmann::json d = Describe(LlamaHeader(), options);
  EXPECT_EQ(d["cache"]["error"],
            "layer 0 has heads of 16 values, which are not whole blocks of 32 in a cache with K in "
            "q8_0; K in f16, bf16 or f32 holds them");
  EXPECT_THAT(Text(LlamaHeader(), InspectDetail::kSummary, options),
              HasSubstr("cache\n  not known: layer 0"));
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
      Text(header),
      HasSubstr("\ntokenizer\n  byte-level BPE (llama-bpe), 3 tokens, bos 2; bos in front\n"));

  EXPECT_EQ(d["chat"]["dialect"], "plain");
  EXPECT_EQ(d["chat"]["calls"], false);
  EXPECT_THAT(Text(header), HasSubstr("\nchat\n  plain text, dialect plain: no calls of tools"));

  // The vocabulary does not fit the output, and an id is out of range.
  EXPECT_EQ(d["supported"], false);
  EXPECT_THAT(d["cache"]["error"].get<std::string>(),
              HasSubstr("the vocabulary has 3 tokens, but the output has "));
  header.SetUint32("tokenizer.ggml.eos_token_id", 7);
  const nlohmann::json noted = Describe(header);
  EXPECT_EQ(noted["tokenizer"]["notes"].size(), 1);
  EXPECT_THAT(Text(header),
              HasSubstr("\n  tokenizer.ggml.eos_token_id is 7, but the vocabulary has 3 tokens; no "
                        "token is used\n"));

  GgufHeader unknown = LlamaHeader();
  unknown.SetString("tokenizer.ggml.model", "gpt2");
  unknown.SetString("tokenizer.ggml.pre", "kling\x1b[31mon");
  unknown.SetStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  unknown.SetStrings("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  const std::string text = Text(unknown);
  EXPECT_THAT(text, HasSubstr("tokenizer\n  not known: pre-tokenizer 'kling"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Inspect, PrintsText) {
  const std::string text = Text(LlamaHeader(), InspectDetail::kTensors);
  EXPECT_THAT(text, HasSubstr("m.gguf\n  llama, small\\x1b[31m\n  66,496 parameters"));
  EXPECT_THAT(text, HasSubstr("cache, K in f16 and V in f16\n  384 bytes per token; 1 GiB holds "
                              "2,796,202 tokens\n"));
  EXPECT_THAT(
      text,
      HasSubstr("  full, 2 KV heads of 16 + 16, 128 bytes per layer and token\n    layers 0\n"));
  EXPECT_THAT(text, HasSubstr("20 × string: 'x', 'x'"));
  EXPECT_THAT(text, HasSubstr("  q8_0      1 tensors, 640 parameters, 680 bytes\n"));
  EXPECT_THAT(text, HasSubstr("token_embd.weight"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(Text(LlamaHeader()).find("token_embd.weight"), std::string::npos);
}

TEST(Inspect, AnEncoderHasNoCache) {
  const make_model::Shape shape;
  const auto* const family = *make_model::FindArchitecture("bert");
  GgufHeader header;
  header.SetString("general.architecture", "bert");
  family->add_metadata(shape, header);
  for (const TensorSpec& spec : family->tensors(shape)) {
    header.AddTensor(spec.name, GgmlType::kF32, spec.dims);
  }
  EXPECT_THAT(Text(header), HasSubstr("cache\n  none: an encoder reads whole inputs\n"));
  EXPECT_EQ(Describe(header)["cache"]["bytes_per_token"], 0);
}

}  // namespace
}  // namespace kvcache::inspect_test
