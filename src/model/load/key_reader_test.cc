#include "model/load/key_reader.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"

namespace kvcache::key_reader_test {
namespace {

class KeyReaderTest : public ::testing::Test {
 protected:
  KeyReader Reader() {
    bytes_ = *header_.Serialize();
    file_ = std::move(GgufFile::Parse(std::as_bytes(std::span(bytes_.data(), bytes_.size())), "m"))
                .value();
    return {*file_, "llama"};
  }
  GgufHeader header_;

 private:
  std::string bytes_;
  std::unique_ptr<GgufFile> file_;
};

TEST_F(KeyReaderTest, ReadsWithinTheRange) {
  header_.SetUint32("llama.a", 7);
  header_.SetInts("llama.list", std::vector<std::int32_t>{1, 2, 3});
  header_.SetUint32("qwen2.b", 9);
  KeyReader keys = Reader();
  EXPECT_EQ(*keys.Int("a", 7), 7);
  EXPECT_EQ(*keys.IntOr("b", 7, 3), 3);
  EXPECT_EQ(*keys.PerLayer("list", 9, 3), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(*keys.PerLayer("a", 9, 2), (std::vector<int>{7, 7}));
  EXPECT_EQ(keys.Int("a", 6).status().message(), "llama.a is 7; must be 1 to 6");
  EXPECT_EQ(keys.PerLayer("list", 9, 4).status().message(), "llama.list has 3 values for 4 layers");
  EXPECT_EQ(keys.Int("missing", 6).status().code(), StatusCode::kNotFound);
}

TEST_F(KeyReaderTest, NumbersAreFinite) {
  header_.SetFloat32("llama.x", std::numeric_limits<float>::infinity());
  KeyReader keys = Reader();
  EXPECT_EQ(keys.Float("x").status().message(), "llama.x is not a finite number");
  EXPECT_EQ(*keys.FloatOr("y", 2.5), 2.5);
}

TEST_F(KeyReaderTest, WhatNobodyReadIsAnErrorWithItsValue) {
  header_.SetUint32("llama.attention.sliding_window", 4096);
  EXPECT_EQ(Reader().CheckAllUsed().message(),
            "llama.attention.sliding_window is 4096: not supported");
  EXPECT_EQ(Reader().CheckAllUsed().code(), StatusCode::kUnsupported);
  KeyReader keys = Reader();
  ASSERT_TRUE(keys.Int("attention.sliding_window", 1 << 20).ok());
  EXPECT_TRUE(keys.CheckAllUsed().ok());
}

TEST_F(KeyReaderTest, ShowsValuesOfEveryKind) {
  const struct {
    void (*set)(GgufHeader&);
    const char* text;
  } kCases[] = {
      {[](GgufHeader& h) { h.SetString("llama.k", "spiral\n"); }, "'spiral\\x0a'"},
      {[](GgufHeader& h) { h.SetFloat32("llama.k", 0.5f); }, "0.5"},
      {[](GgufHeader& h) { h.SetBool("llama.k", true); }, "true"},
      {[](GgufHeader& h) { h.SetInt32("llama.k", -3); }, "-3"},
      {[](GgufHeader& h) {
         h.SetInts("llama.k", std::vector<std::int32_t>{1, 2});
       },
       "an array of 2 int32"},
  };
  for (const auto& c : kCases) {
    header_ = GgufHeader();
    c.set(header_);
    EXPECT_EQ(Reader().CheckAllUsed().message(),
              std::string("llama.k is ") + c.text + ": not supported");
  }
}

TEST_F(KeyReaderTest, WhatIsOffOrSaysNothingIsNoError) {
  header_.SetUint32("llama.attention.sliding_window", 0);
  header_.SetBool("llama.parallel", false);
  header_.SetFloat32("llama.logit_soft_cap", 0.0f);
  header_.SetUint32("llama.vocab_size", 32000);
  header_.SetUint32("qwen2.window", 5);
  header_.SetString("general.name", "x");
  EXPECT_TRUE(Reader().CheckAllUsed().ok()) << Reader().CheckAllUsed().message();
}

}  // namespace
}  // namespace kvcache::key_reader_test
