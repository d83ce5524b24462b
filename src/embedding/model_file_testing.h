// Files of random models and inputs, for tests of embedders.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache_engine/embedder.h"
#include "make_model/make_model.h"

namespace kvcache::embedder_test {

using Inputs = std::vector<std::vector<std::int32_t>>;

inline constexpr int kMean = 1;
inline constexpr int kCls = 2;
inline constexpr int kLast = 3;
inline constexpr int kRank = 4;

// A file that is removed at the end.
class ModelFile {
 public:
  explicit ModelFile(make_model::Request request)
      : path_(::testing::TempDir() + "embedder." + std::to_string(getpid()) + "." +
              std::to_string(++files) + ".gguf") {
    const Status made = make_model::MakeModel(request, path_);
    EXPECT_TRUE(made.ok()) << made.message();
  }
  ~ModelFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  std::unique_ptr<Embedder> Open(const EmbedderOptions& options = {.threads = 2}) const {
    auto embedder = Embedder::Open(path_, options);
    EXPECT_TRUE(embedder.ok()) << embedder.status().message();
    return std::move(embedder).value();
  }

 private:
  static inline int files = 0;
  std::string path_;
};

inline make_model::Request RequestOf(const std::string& architecture, int pooling = kMean) {
  make_model::Request request{.architecture = architecture, .type = DType::kQ8_0};
  request.shape.kv_heads = architecture == "qwen3" || architecture == "llama" ? 2 : 4;
  request.shape.window =
      architecture == "modern-bert" || architecture == "gemma-embedding" ? 21 : 0;
  request.shape.experts = architecture == "nomic-bert-moe" ? 4 : 0;
  request.shape.context = 256;
  request.shape.family.pooling = pooling;
  return request;
}

inline std::vector<std::int32_t> SomeTokens(int count, int first) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (first + i * 37) % 250);
  return tokens;
}

// Inputs of many lengths, some of which begin with the same tokens.
inline Inputs SomeInputs() {
  Inputs inputs;
  for (const int count : {1, 40, 7, 130, 64, 3}) inputs.push_back(SomeTokens(count, count));
  const std::vector<std::int32_t> shared = SomeTokens(70, 5);
  for (const int count : {0, 4, 33}) {
    inputs.push_back(shared);
    for (const std::int32_t token : SomeTokens(count, 90 + count)) inputs.back().push_back(token);
  }
  inputs.push_back(inputs[1]);
  return inputs;
}

}  // namespace kvcache::embedder_test
