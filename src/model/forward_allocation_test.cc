// Counts allocations: a warm pass through a model makes none, in any family and with any kind of
// cache type.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/cpu_backend.h"
#include "make_model/architecture.h"
#include "make_model/make_model.h"
#include "model/model.h"
#include "support/counting_new.h"

namespace kvcache::forward_allocation_test {
namespace {

// An architecture, and the type of its cache.
using Case = std::tuple<const char*, DType>;

class ForwardAllocation : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "forward_allocation." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = std::get<0>(GetParam()), .type = DType::kQ8_0};
    request.shape.rope_scaling = make_model::RopeScaling::kYarn;
    const auto* const family = *make_model::FindArchitecture(request.architecture);
    if (family->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 12;
    if (request.architecture.starts_with("nemotron_h")) request.shape.layers = 3;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    file_ = std::move(GgufFile::Open(path_)).value();
    model_ = std::move(LoadModel(*file_, *backend_)).value();
    cache_ = model_->MakeCache();
    ASSERT_TRUE(cache_
                    ->Init(*backend_, {.k_type = std::get<1>(GetParam()),
                                       .v_type = std::get<1>(GetParam()),
                                       .max_sequences = 1,
                                       .capacity = 512,
                                       .max_batch = kBatch})
                    .ok());
    ASSERT_TRUE(model_->Reserve(kBatch).ok());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Evaluates `count` tokens from `position` on and returns the number of allocations. Inputs are
  // made before counting starts.
  std::int64_t Pass(Position position, int count) {
    std::vector<std::int32_t> tokens;
    std::vector<Position> positions;
    for (int i = 0; i < count; ++i) {
      tokens.push_back((position + i) * 37 % 500);
      positions.push_back(position + i);
    }
    const std::vector<SequenceId> sequences(tokens.size(), SequenceId{0});
    const std::int32_t row[] = {count - 1};
    const std::int64_t before = testing::AllocationCount();
    Status status = cache_->StartForward(
        {.positions = positions, .sequences = sequences, .items = {}}, ForwardMode::kCompute);
    if (status.ok()) status = model_->Forward(tokens, positions, *cache_);
    if (status.ok()) status = model_->Logits(row, logits_.data());
    const std::int64_t made = testing::AllocationCount() - before;
    EXPECT_TRUE(status.ok()) << status.message();
    return made;
  }

  static constexpr int kBatch = 64;
  std::string path_;
  std::unique_ptr<Backend> backend_ = std::move(MakeCpuBackend({.threads = 2})).value();
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Cache> cache_;
  std::vector<float> logits_ = std::vector<float>(512);
};

// A model is warm after passes of the same size with a history of the same length.
TEST_P(ForwardAllocation, NoneOnceWarm) {
  EXPECT_GT(Pass(0, kBatch), 0) << "the counter must count the first pass";
  for (Position position = kBatch; position < 6 * kBatch; position += kBatch) {
    Pass(position, kBatch);
  }
  Pass(6 * kBatch, 1);
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
  Position position = 0;
  for (const int count : {1, 1, 17, kBatch, 1, 5, 40, kBatch, kBatch, kBatch, 1, 7, 1}) {
    EXPECT_EQ(Pass(position, count), 0) << count << " tokens at " << position;
    position += count;
  }
}

std::string NameOfCase(const ::testing::TestParamInfo<Case>& test) {
  const std::string type(InfoOf(std::get<1>(test.param)).name);
  std::string name = std::get<0>(test.param);
  std::ranges::replace(name, '-', '_');
  return name + "_" + type;
}

INSTANTIATE_TEST_SUITE_P(
    Families, ForwardAllocation,
    ::testing::Combine(::testing::Values("falcon-h1", "glm4", "granite", "granitehybrid", "lfm2",
                                         "llama", "mamba2", "mistral3", "nemotron_h",
                                         "nemotron_h_moe", "qwen2", "qwen3", "qwen35", "qwen35moe",
                                         "qwen3moe", "qwen3next"),
                       ::testing::Values(DType::kF16)),
    NameOfCase);
INSTANTIATE_TEST_SUITE_P(Blocks, ForwardAllocation,
                         ::testing::Values(Case("llama", DType::kQ8_0), Case("llama", DType::kQ4_0),
                                           Case("qwen3next", DType::kQ8_0)),
                         NameOfCase);

}  // namespace
}  // namespace kvcache::forward_allocation_test
