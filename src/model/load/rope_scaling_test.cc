#include "model/load/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::rope_scaling_test {
namespace {

constexpr int kDims = 16;

// A file with the rotation's keys alone.
class RopeScalingFile {
 public:
  void SetType(const std::string& type, float factor) {
    header.SetString("llama.rope.scaling.type", type);
    header.SetFloat32("llama.rope.scaling.factor", factor);
  }

  Result<RopeTable> Read() {
    bytes_ = *header.Serialize();
    const std::size_t data = bytes_.size();
    bytes_.resize(data + header.data_bytes());
    if (!divisors_.empty()) {
      std::memcpy(bytes_.data() + data, divisors_.data(), divisors_.size() * sizeof(float));
    }
    file_ = std::move(GgufFile::Parse(std::as_bytes(std::span(bytes_.data(), bytes_.size())), "m"))
                .value();
    KeyReader keys(*file_, "llama");
    WeightReader weights(*file_, *backend_);
    LayerParams params;
    params.k_dim = kDims;
    params.context_length = 4096;
    auto table = ReadRope(keys, params, RopeParams::Pairing::kHalves, weights);
    if (table.ok()) {
      EXPECT_TRUE(keys.CheckAllUsed().ok()) << keys.CheckAllUsed().message();
      EXPECT_TRUE(weights.CheckAllUsed().ok());
    }
    return table;
  }

  void SetDivisors(std::vector<float> divisors) {
    divisors_ = std::move(divisors);
    header.AddTensor("rope_freqs.weight", GgmlType::kF32,
                     {static_cast<std::int64_t>(divisors_.size())});
  }

  static double Plain(int pair) { return std::pow(1e4, -2.0 * pair / kDims); }

  GgufHeader header;

 private:
  std::string bytes_;
  std::vector<float> divisors_;
  std::unique_ptr<Backend> backend_ = std::move(MakeCpuBackend({.threads = 1})).value();
  std::unique_ptr<GgufFile> file_;
};

class RopeScalingTest : public ::testing::Test, protected RopeScalingFile {};

TEST_F(RopeScalingTest, PlainIsTheBaseAlone) {
  const auto table = Read();
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->dims, kDims);
  EXPECT_EQ(table->magnitude, 1.0f);
  EXPECT_EQ(table->original_context, 4096);
  for (int i = 0; i < kDims / 2; ++i) {
    EXPECT_EQ(table->inv_freq[static_cast<std::size_t>(i)], static_cast<float>(Plain(i)));
  }
}

TEST_F(RopeScalingTest, LinearDividesAll) {
  SetType("linear", 8.0f);
  header.SetFloat32("llama.rope.scaling.attn_factor", 1.5f);
  const auto table = Read();
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->magnitude, 1.5f);
  for (int i = 0; i < kDims / 2; ++i) {
    EXPECT_EQ(table->inv_freq[static_cast<std::size_t>(i)], static_cast<float>(Plain(i) / 8.0));
  }
}

TEST_F(RopeScalingTest, AFactorWithoutATypeIsLinearAndTheOldNameCounts) {
  header.SetFloat32("llama.rope.scale_linear", 2.0f);
  EXPECT_EQ(Read()->inv_freq[0], 0.5f);
  header.SetString("llama.rope.scaling.type", "none");
  EXPECT_EQ(Read()->inv_freq[0], 1.0f);
}

TEST_F(RopeScalingTest, YarnKeepsFastPairsAndStretchesSlowOnes) {
  SetType("yarn", 4.0f);
  header.SetUint32("llama.rope.scaling.original_context_length", 1024);
  const auto table = Read();
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->original_context, 1024);
  EXPECT_FLOAT_EQ(table->magnitude, static_cast<float>(1.0 + 0.1 * std::log(4.0)));
  // Pair i makes 1024 / (2π · 10^(i/2)) rotations within the original context:
  // 163, 51.5, 16.3, 5.2, 1.6, 0.5, … Pairs 1.4 to 4.4 make between 32 and 1, so the ramp runs from
  // pair 1 to pair 5.
  for (int i = 0; i < kDims / 2; ++i) {
    const double stretched = std::clamp((i - 1) / 4.0, 0.0, 1.0);
    const double expected = Plain(i) * ((1.0 - stretched) + stretched / 4.0);
    EXPECT_FLOAT_EQ(table->inv_freq[static_cast<std::size_t>(i)], static_cast<float>(expected))
        << i;
  }
}

TEST_F(RopeScalingTest, YarnsRampAndMagnitudeFollowTheirKeys) {
  SetType("yarn", 4.0f);
  header.SetUint32("llama.rope.scaling.original_context_length", 1024);
  header.SetFloat32("llama.rope.scaling.yarn_beta_fast", 8.0f);  // pair 2.6
  header.SetFloat32("llama.rope.scaling.yarn_beta_slow", 2.0f);  // pair 3.8
  header.SetFloat32("llama.rope.scaling.yarn_log_multiplier", 1.0f);
  const auto table = Read();
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->magnitude, 1.0f);
  EXPECT_EQ(table->inv_freq[2], static_cast<float>(Plain(2)));
  EXPECT_FLOAT_EQ(table->inv_freq[3], static_cast<float>(Plain(3) * (0.5 + 0.5 / 4.0)));
  EXPECT_EQ(table->inv_freq[4], static_cast<float>(Plain(4) / 4.0));
}

TEST_F(RopeScalingTest, YarnThatShrinksLeavesTheMagnitude) {
  SetType("yarn", 0.5f);
  EXPECT_EQ(Read()->magnitude, 1.0f);
}

TEST_F(RopeScalingTest, DivisorsDivide) {
  SetDivisors({1, 1, 1, 1, 2, 4, 8, 8});
  const auto table = Read();
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->inv_freq[3], static_cast<float>(Plain(3)));
  EXPECT_EQ(table->inv_freq[6], static_cast<float>(Plain(6) / 8.0));
}

TEST_F(RopeScalingTest, ErrorsNameKeyAndValue) {
  const struct {
    std::function<void(RopeScalingFile&)> set;
    std::string message;
  } kCases[] = {
      {[](RopeScalingFile& t) { t.SetType("longrope", 2.0f); },
       "llama.rope.scaling.type is 'longrope': not supported"},
      {[](RopeScalingFile& t) { t.SetType("linear", -2.0f); },
       "llama.rope.scaling.factor is -2; must be above 0"},
      {[](RopeScalingFile& t) { t.header.SetFloat32("llama.rope.freq_base", 0.0f); },
       "llama.rope.freq_base is 0; must be above 0"},
      {[](RopeScalingFile& t) { t.header.SetUint32("llama.rope.dimension_count", 7); },
       "llama.rope.dimension_count is 7; must be even"},
      {[](RopeScalingFile& t) { t.header.SetUint32("llama.rope.dimension_count", 18); },
       "llama.rope.dimension_count is 18; must be 1 to 16"},
      {[](RopeScalingFile& t) {
         t.SetType("yarn", 2.0f);
         t.header.SetFloat32("llama.rope.scaling.yarn_beta_slow", 0.0f);
       },
       "llama.rope.scaling.yarn_beta_slow is 0; must be above 0"},
      {[](RopeScalingFile& t) {
         t.SetType("yarn", 2.0f);
         t.header.SetFloat32("llama.rope.scaling.yarn_attn_factor", 1.25f);
       },
       "llama.rope.scaling.yarn_attn_factor is 1.25: not supported"},
      {[](RopeScalingFile& t) {
         t.SetType("yarn", 2.0f);
         t.header.SetFloat32("llama.rope.freq_base", 1.0f);
       },
       "llama.rope.freq_base is 1: not supported"},
      {[](RopeScalingFile& t) {
         t.SetDivisors({1, 1, 1, 1, 1, 1, 0, 1});
       },
       "tensor 'rope_freqs.weight' has 0 at 6; must be above 0"},
      {[](RopeScalingFile& t) {
         t.SetDivisors({1, 1});
       },
       "tensor 'rope_freqs.weight' has shape [2, 1]; must be [8, 1]"},
  };
  for (const auto& c : kCases) {
    RopeScalingFile file;
    c.set(file);
    const auto table = file.Read();
    ASSERT_FALSE(table.ok()) << c.message;
    EXPECT_EQ(table.status().message(), c.message);
  }
}

}  // namespace
}  // namespace kvcache::rope_scaling_test
