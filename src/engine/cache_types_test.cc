// Models that can have caches of block types, and the errors for those that cannot, before anything
// runs. That their logits are exact is tests/exactness's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "engine/engine_impl.h"
#include "make_model/make_model.h"

namespace kvcache::cache_types_test {
namespace {

struct TypesCase {
  const char* name;
  const char* architecture;
  int head_dim = 32;
  int experts = 0;
  bool whole_kv = false;
  const char* k_error = nullptr;  // with K in q8_0
  const char* v_error = nullptr;  // with V in q4_0
};

const TypesCase kCases[] = {
    {"llama", "llama"},
    {"llama_64", "llama", 64},
    {"llama_80", "llama", 80, 0, false,
     "layer 0 has heads of 80 values, which are not whole blocks of 32 in a cache with K in q8_0; "
     "K in f16, bf16 or f32 holds them",
     "layer 0 has heads of 80 values, which are not whole blocks of 32 in a cache with V in q4_0; "
     "V in f16, bf16 or f32 holds them"},
    {"llama4", "llama4", 32, 4},
    {"deepseek2", "deepseek2", 32, 4},
    {"deepseek2_old", "deepseek2", 32, 4, true},
    {"gemma2", "gemma2"},
    {"gemma3", "gemma3"},
    {"gemma3n", "gemma3n"},
    {"gemma4", "gemma4"},
    {"gpt_oss", "gpt-oss", 32, 4},
    {"falcon_h1", "falcon-h1"},
    {"granitehybrid", "granitehybrid"},
    {"lfm2", "lfm2"},
    {"lfm2moe", "lfm2moe", 32, 4},
    {"mamba2", "mamba2"},
    {"mistral3", "mistral3"},
    {"mllama", "mllama"},
    {"nemotron_h", "nemotron_h"},
    {"nemotron_h_moe", "nemotron_h_moe", 32, 4},
    {"qwen2", "qwen2"},
    {"qwen3", "qwen3"},
    {"qwen3moe", "qwen3moe", 32, 4},
    {"qwen35", "qwen35"},
    {"qwen35moe", "qwen35moe", 32, 4},
    {"qwen3next", "qwen3next", 32, 4},
    {"apertus", "apertus"},
    {"bailingmoe2", "bailingmoe2", 32, 4},
    {"cohere2", "cohere2"},
    {"dots1", "dots1", 32, 4},
    {"ernie4_5", "ernie4_5"},
    {"ernie4_5_moe", "ernie4_5-moe", 32, 4},
    {"exaone4", "exaone4"},
    {"glm4", "glm4"},
    {"glm4moe", "glm4moe", 32, 4},
    {"granite", "granite"},
    {"granitemoe", "granitemoe", 32, 4},
    {"hunyuan_dense", "hunyuan-dense"},
    {"hunyuan_moe", "hunyuan-moe", 32, 4},
    {"minimax_m2", "minimax-m2", 32, 4},
    {"olmo2", "olmo2"},
    {"phi3", "phi3"},
    {"seed_oss", "seed_oss"},
    {"smollm3", "smollm3"},
    {"t5", "t5"},
};

class CacheTypes : public ::testing::TestWithParam<TypesCase> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "cache_types." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = GetParam().architecture, .type = DType::kF32};
    request.shape.head_dim = GetParam().head_dim;
    request.shape.experts = GetParam().experts;
    request.shape.family.whole_kv = GetParam().whole_kv;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void Expect(DType k, DType v, const char* error) const {
    const auto engine = Engine::Open(path_, {.k_type = k, .v_type = v, .context = 64});
    if (error == nullptr) {
      EXPECT_TRUE(engine.ok()) << engine.status().message();
      return;
    }
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(engine.status().message(), path_ + ": " + error);
  }

  std::string path_;
};

TEST_P(CacheTypes, AreTakenOrRefusedWithWhatToDo) {
  const TypesCase& c = GetParam();
  Expect(DType::kQ8_0, DType::kF16, c.k_error);
  Expect(DType::kF16, DType::kQ4_0, c.v_error);
}

INSTANTIATE_TEST_SUITE_P(Models, CacheTypes, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvcache::cache_types_test
