#include "model/adapter/adapter_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/random_adapter.h"

namespace kvcache::adapter_file_test {
namespace {

using testing::AdapterHeader;
using testing::AdapterTensor;
using testing::GgufBytes;
using ::testing::HasSubstr;

std::vector<AdapterTensor> Pair(const std::string& name, std::int64_t inputs = 6,
                                std::int64_t outputs = 5, std::int64_t rank = 2) {
  std::uint64_t state = 1;
  return {{name + ".lora_a", {inputs, rank}, testing::RandomValues(state, inputs * rank, 1.0f)},
          {name + ".lora_b", {rank, outputs}, testing::RandomValues(state, outputs * rank, 1.0f)}};
}

std::string Message(const GgufHeader& header, const std::vector<AdapterTensor>& tensors) {
  const auto bytes = GgufBytes(header, tensors);
  const auto file = AdapterFile::Parse(bytes, "a.gguf");
  return file.ok() ? "" : file.status().message();
}

std::string MessageOf(const std::vector<AdapterTensor>& tensors) {
  return Message(AdapterHeader("llama", 4.0f), tensors);
}

TEST(AdapterFileTest, ReadsPairs) {
  std::vector<AdapterTensor> tensors = Pair("blk.1.attn_q.weight");
  for (AdapterTensor& more : Pair("blk.0.ffn_up.weight", 6, 9, 3)) tensors.push_back(more);
  const auto bytes = GgufBytes(AdapterHeader("llama", 4.0f), tensors);
  const auto file = AdapterFile::Parse(bytes, "a.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->architecture(), "llama");
  EXPECT_EQ((*file)->alpha(), 4.0);
  EXPECT_EQ((*file)->max_rank(), 3);
  ASSERT_EQ((*file)->pairs().size(), 2);
  EXPECT_EQ((*file)->pairs()[0].tensor, "blk.0.ffn_up.weight");
  EXPECT_EQ((*file)->pairs()[0].rank, 3);
  EXPECT_EQ((*file)->pairs()[1].a->dims[0], 6);
  EXPECT_EQ((*file)->digest(), Sha256Of(bytes));
}

TEST(AdapterFileTest, WrongKeysAreNamed) {
  const auto pair = Pair("blk.0.attn_q.weight");
  const auto with = [&](const std::function<void(GgufHeader&)>& change) {
    GgufHeader header;
    change(header);
    return Message(header, pair);
  };
  EXPECT_THAT(with([](GgufHeader&) {}), HasSubstr("a.gguf: general.type is ''"));
  EXPECT_THAT(with([](GgufHeader& h) { h.SetString("general.type", "model"); }),
              HasSubstr("general.type is 'model'; the file of an adapter says 'adapter'"));
  EXPECT_THAT(with([](GgufHeader& h) { h.SetString("general.type", "adapter"); }),
              HasSubstr("adapter.type"));
  EXPECT_THAT(with([](GgufHeader& h) {
                h.SetString("general.type", "adapter");
                h.SetString("adapter.type", "ia3");
              }),
              HasSubstr("adapter.type is 'ia3'; must be 'lora'"));
  GgufHeader invoked = AdapterHeader("llama", 4.0f);
  const std::int32_t tokens[] = {1, 2};
  invoked.SetInts("adapter.alora.invocation_tokens", tokens);
  EXPECT_THAT(Message(invoked, pair), HasSubstr("adapter.alora.invocation_tokens"));
  GgufHeader unknown = AdapterHeader("llama", 4.0f);
  unknown.SetUint32("adapter.lora.magic", 1);
  EXPECT_THAT(Message(unknown, pair), HasSubstr("'adapter.lora.magic' of an adapter is unknown"));
  for (const float alpha : {-1.0f, std::numeric_limits<float>::infinity(), NAN, 1e20f}) {
    EXPECT_THAT(Message(AdapterHeader("llama", alpha), pair), HasSubstr("adapter.lora.alpha is "))
        << alpha;
  }
  EXPECT_EQ(Message(AdapterHeader("llama", 0.0f), pair), "");
}

TEST(AdapterFileTest, WrongTensorsAreNamed) {
  EXPECT_THAT(MessageOf({}), HasSubstr("a.gguf: the adapter has no tensors"));
  auto pair = Pair("blk.0.attn_q.weight");
  EXPECT_THAT(MessageOf({pair[0]}), HasSubstr("tensor 'blk.0.attn_q.weight.lora_b' is missing"));
  EXPECT_THAT(MessageOf({pair[1]}), HasSubstr("tensor 'blk.0.attn_q.weight.lora_a' is missing"));
  std::vector<AdapterTensor> norm = pair;
  norm.push_back({"blk.0.attn_norm.weight", {6}, std::vector<float>(6)});
  EXPECT_THAT(MessageOf(norm), HasSubstr("'blk.0.attn_norm.weight' is no .lora_a and no .lora_b"));
  const auto ranks = [&](std::vector<std::int64_t> a, std::vector<std::int64_t> b,
                         const std::string& name = "blk.0.attn_q.weight") {
    const auto tensor = [&](const char* suffix, const std::vector<std::int64_t>& dims) {
      std::int64_t count = 1;
      for (const std::int64_t size : dims) count *= size;
      return AdapterTensor{name + suffix, dims,
                           std::vector<float>(static_cast<std::size_t>(count))};
    };
    return MessageOf({tensor(".lora_a", a), tensor(".lora_b", b)});
  };
  EXPECT_EQ(ranks({6, 2}, {2, 5}), "");
  EXPECT_THAT(ranks({6, 2}, {3, 5}),
              HasSubstr("[6, 2] and 'blk.0.attn_q.weight.lora_b' [3, 5] do not"));
  EXPECT_THAT(ranks({2, 6}, {2, 5}), HasSubstr("do not fit each other"));
  EXPECT_THAT(ranks({6, 2, 3}, {2, 5}), HasSubstr("do not fit each other"));
  EXPECT_EQ(ranks({6, 2, 3}, {2, 5, 3}), "");
  EXPECT_EQ(ranks({2, 9}, {2, 5}, "token_embd.weight"), "");
  EXPECT_THAT(ranks({9, 2}, {2, 5}, "token_embd.weight"), HasSubstr("[r, vocabulary]"));
  EXPECT_THAT(ranks({1, 1 << 17}, {1 << 17, 1}), HasSubstr("has rank 131072; must be from 1 to"));
  pair[1].values[3] = NAN;
  EXPECT_THAT(MessageOf(pair),
              HasSubstr("tensor 'blk.0.attn_q.weight.lora_b' has the value nan at 3"));
  pair[1].values[3] = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(MessageOf(pair), HasSubstr("has the value -inf at 3"));
}

TEST(AdapterFileTest, ACutFileIsAnError) {
  const auto bytes = GgufBytes(AdapterHeader("llama", 4.0f), Pair("blk.0.attn_q.weight"));
  // The last values are followed by at most 31 bytes to the next multiple of the alignment.
  for (std::size_t size = 0; size + 32 < bytes.size(); size += 7) {
    const auto file = AdapterFile::Parse(std::span(bytes).first(size), "a.gguf");
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_THAT(file.status().message(), HasSubstr("a.gguf")) << size;
  }
}

}  // namespace
}  // namespace kvcache::adapter_file_test
