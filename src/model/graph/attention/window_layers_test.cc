#include "model/graph/attention/window_layers.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"

namespace kvcache::window_layers_test {
namespace {

// Reads the windows of `layers` layers from a file with these keys; the result has the error's
// text.
struct Windows {
  std::vector<int> of_layer;
  std::string error;
};
Windows Read(const std::string& architecture, int layers,
             const std::function<void(GgufHeader&)>& set) {
  GgufHeader header;
  set(header);
  const std::string bytes = *header.Serialize();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m");
  EXPECT_TRUE(file.ok()) << file.status().message();
  KeyReader keys(**file, architecture);
  LayerParams params;
  params.layers = layers;
  const auto spans = ReadAttentionSpans(keys, params);
  if (!spans.ok()) return {{}, spans.status().message()};
  EXPECT_TRUE(keys.CheckAllUsed().ok());
  Windows windows;
  for (const AttentionSpan& span : *spans) windows.of_layer.push_back(span.window);
  return windows;
}

const auto kNothing = [](GgufHeader&) {};

std::function<void(GgufHeader&)> Window(const std::string& architecture, std::uint32_t window) {
  return [=](GgufHeader& h) { h.SetUint32(architecture + ".attention.sliding_window", window); };
}

TEST(WindowLayersTest, FamiliesHaveTheirOwnPatterns) {
  using W = std::vector<int>;
  EXPECT_EQ(Read("qwen3", 2, kNothing).of_layer, (W{0, 0}));
  EXPECT_EQ(Read("llama", 2, kNothing).of_layer, (W{0, 0}));
  EXPECT_EQ(Read("llama", 3, Window("llama", 9)).of_layer, (W{9, 9, 9}));
  EXPECT_EQ(Read("llama", 2, Window("llama", 0)).of_layer, (W{0, 0}));
  EXPECT_EQ(Read("llama", 3,
                 [](GgufHeader& h) {
                   Window("llama", 9)(h);
                   h.SetUint32("llama.attention.sliding_window_pattern", 2);
                 })
                .of_layer,
            (W{9, 0, 9}));
  EXPECT_EQ(Read("gpt-oss", 3, Window("gpt-oss", 9)).of_layer, (W{9, 0, 9}));
  EXPECT_NE(Read("gpt-oss", 3, kNothing).error.find("gpt-oss.attention.sliding_window"),
            std::string::npos);
  EXPECT_EQ(Read("gemma2", 4, kNothing).of_layer, (W{4096, 0, 4096, 0}));
  EXPECT_EQ(Read("gemma2", 3, Window("gemma2", 9)).of_layer, (W{9, 0, 9}));
  EXPECT_EQ(Read("gemma3", 3, kNothing).of_layer, (W{0, 0, 0}));
  EXPECT_EQ(Read("gemma3", 8, Window("gemma3", 9)).of_layer, (W{9, 9, 9, 9, 9, 0, 9, 9}));
}

TEST(WindowLayersTest, APatternIsANumberOrAnArray) {
  using W = std::vector<int>;
  const auto with = [](const std::function<void(GgufHeader&, const std::string&)>& set) {
    return Read("gemma3", 4, [&](GgufHeader& h) {
      Window("gemma3", 9)(h);
      set(h, "gemma3.attention.sliding_window_pattern");
    });
  };
  const auto number = [&](std::uint32_t n) {
    return with([=](GgufHeader& h, const std::string& key) { h.SetUint32(key, n); }).of_layer;
  };
  EXPECT_EQ(number(0), (W{9, 9, 9, 9}));
  EXPECT_EQ(number(1), (W{0, 0, 0, 0}));
  EXPECT_EQ(number(3), (W{9, 9, 0, 9}));
  EXPECT_EQ(number(100), (W{9, 9, 9, 9}));
  const bool bools[] = {false, true, true, false};
  EXPECT_EQ(with([&](GgufHeader& h, const std::string& key) { h.SetBools(key, bools); }).of_layer,
            (W{0, 9, 9, 0}));
  EXPECT_EQ(with([&](GgufHeader& h, const std::string& key) {
              h.SetBools(key, std::span(bools).first(3));
            }).error,
            "gemma3.attention.sliding_window_pattern has 3 values for 4 layers");
  EXPECT_EQ(with([](GgufHeader& h, const std::string& key) { h.SetInt32(key, -2); }).error,
            "gemma3.attention.sliding_window_pattern is -2; must be at least 0");
}

TEST(WindowLayersTest, AWindowOutOfRangeIsAnError) {
  EXPECT_EQ(Read("gemma2", 2, Window("gemma2", 1U << 31)).error,
            "gemma2.attention.sliding_window is 2147483648; must be 1 to 1073741824");
}

}  // namespace
}  // namespace kvcache::window_layers_test
