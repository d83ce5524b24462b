// A kernel fails at every call of a pass and of loading, in every family. The error must be
// returned unchanged. After the pass's tokens are removed, the same pass must give the same bits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/cpu_backend.h"
#include "make_model/architecture.h"
#include "make_model/make_model.h"
#include "model/model.h"
#include "support/failing_backend.h"

namespace kvcache::forward_fault_test {
namespace {

using testing::FailingBackend;

// An architecture, and the type of its cache.
using Case = std::tuple<const char*, DType>;

class ForwardFault : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "forward_fault." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = std::get<0>(GetParam()), .type = DType::kF16};
    request.shape.rope_scaling = make_model::RopeScaling::kYarn;
    const auto* const family = *make_model::FindArchitecture(request.architecture);
    if (family->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 5;
    const bool has_small_layers =
        request.architecture.starts_with("nemotron_h") || request.architecture == "mamba2";
    if (has_small_layers) request.shape.layers = 4;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    file_ = std::move(GgufFile::Open(path_)).value();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Status Load() {
    auto model = LoadModel(*file_, backend_);
    if (!model.ok()) return std::move(model).TakeStatus();
    model_ = std::move(model).value();
    cache_ = model_->MakeCache();
    KVCACHE_RETURN_IF_ERROR(cache_->Init(backend_, {.k_type = std::get<1>(GetParam()),
                                                    .v_type = std::get<1>(GetParam()),
                                                    .max_sequences = 1,
                                                    .capacity = 64,
                                                    .max_batch = 8}));
    return model_->Reserve(8);
  }

  // Evaluates tokens 0 to 5 in one pass and returns the last one's logits.
  Status Pass(std::vector<float>& logits) {
    const std::vector<std::int32_t> tokens = {3, 14, 15, 92, 65, 35};
    const std::vector<Position> positions = {0, 1, 2, 3, 4, 5};
    const std::vector<SequenceId> sequences(6, SequenceId{0});
    KVCACHE_RETURN_IF_ERROR(cache_->StartForward(
        {.positions = positions, .sequences = sequences, .items = {}}, ForwardMode::kCompute));
    KVCACHE_RETURN_IF_ERROR(model_->Forward(tokens, positions, *cache_));
    logits.assign(static_cast<std::size_t>(model_->info().vocabulary), 0.0f);
    const std::int32_t row[] = {5};
    return model_->Logits(row, logits.data());
  }

  static void ExpectAsked(const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_TRUE(status.message().ends_with(FailingBackend::kMessage)) << status.message();
  }

  std::string path_;
  FailingBackend backend_{std::move(MakeCpuBackend({.threads = 1})).value()};
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Cache> cache_;
};

TEST_P(ForwardFault, EachCallOfAPass) {
  ASSERT_TRUE(Load().ok());
  std::vector<float> expected, logits;
  ASSERT_TRUE(Pass(expected).ok());
  int failed = 0;
  for (;; ++failed) {
    ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
    backend_.FailNth(failed + 1);
    const Status status = Pass(logits);
    const bool fired = !backend_.failure_pending();
    backend_.FailNth(0);
    if (!fired) {
      ASSERT_TRUE(status.ok()) << status.message();
      break;
    }
    ExpectAsked(status);
    ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
    ASSERT_TRUE(Pass(logits).ok()) << "after call " << failed + 1;
    ASSERT_EQ(logits, expected);
  }
  EXPECT_EQ(logits, expected);
  EXPECT_GT(failed, 2 * 13) << "two layers of at least thirteen calls";
}

// An interrupt between any two calls of a pass acts like a failing kernel, with kCancelled.
TEST_P(ForwardFault, InterruptAfterEachCallOfAPass) {
  ASSERT_TRUE(Load().ok());
  std::vector<float> expected, logits;
  ASSERT_TRUE(Pass(expected).ok());
  std::atomic<bool> interrupt{false};
  int interrupted = 0;
  for (;; ++interrupted) {
    ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
    interrupt = false;
    model_->SetInterrupt(&interrupt);
    backend_.SetAtNth(interrupted + 1, &interrupt);
    const Status status = Pass(logits);
    model_->SetInterrupt(nullptr);
    backend_.SetAtNth(0, nullptr);
    if (status.ok()) break;  // the flag was set after the pass's last operation, or not at all
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
    ASSERT_TRUE(Pass(logits).ok()) << "after call " << interrupted + 1;
    ASSERT_EQ(logits, expected);
  }
  EXPECT_EQ(logits, expected);
  EXPECT_GE(interrupted, 2 * 12)
      << "two layers; operations after the last one are not part of the pass";
}

TEST_P(ForwardFault, EachCallOfLoading) {
  int failed = 0;
  for (;; ++failed) {
    backend_.FailNth(failed + 1);
    const Status status = Load();
    const bool fired = !backend_.failure_pending();
    backend_.FailNth(0);
    cache_.reset();
    model_.reset();
    if (!fired) {
      ASSERT_TRUE(status.ok()) << status.message();
      break;
    }
    ExpectAsked(status);
  }
  EXPECT_GT(failed, 2 * 7) << "two layers of at least seven matrices";
}

std::string NameOfCase(const ::testing::TestParamInfo<Case>& test) {
  std::string name = std::get<0>(test.param);
  std::ranges::replace(name, '-', '_');
  return name + "_" + std::string(InfoOf(std::get<1>(test.param)).name);
}

INSTANTIATE_TEST_SUITE_P(
    Families, ForwardFault,
    ::testing::Combine(::testing::Values("cohere2", "falcon-h1", "gemma2", "gemma3", "gemma3n",
                                         "gemma4", "glm4", "gpt-oss", "granitehybrid", "lfm2",
                                         "llama", "mamba2", "mistral3", "nemotron_h",
                                         "nemotron_h_moe", "qwen2", "qwen3", "qwen35", "qwen35moe",
                                         "qwen3moe", "qwen3next"),
                       ::testing::Values(DType::kF32)),
    NameOfCase);
INSTANTIATE_TEST_SUITE_P(Blocks, ForwardFault,
                         ::testing::Values(Case("llama", DType::kQ8_0),
                                           Case("gemma2", DType::kQ4_0),
                                           Case("granitehybrid", DType::kQ8_0)),
                         NameOfCase);

}  // namespace
}  // namespace kvcache::forward_fault_test
