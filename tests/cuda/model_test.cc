// Models over the CUDA backend on the shim: each architecture, each type of weights, keys and values gives the bits of
// the CPU backend, also where the layers are divided between both, and where one goes on with what the other stored.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/shim/shim_device.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/split_backend.h"
#include "model/model_run_testing.h"
#include "tensor/quantize.h"

namespace kvcache::cuda_model_test {
namespace {

using model_run::AnswersOf;
using model_run::KvTypes;
using model_run::RandomModel;

std::unique_ptr<Backend> Cpu() {
  return std::move(MakeCpuBackend({.threads = 1})).value();
}

// The accesses of kernels are checked by the tests of each kernel.
std::unique_ptr<Backend> Cuda() {
  return std::make_unique<cuda::CudaBackend>(
      cuda::MakeShimDevice({.seed = 7, .checks = cuda::AccessChecks::kOff}));
}

class CudaModel : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaModel, GivesTheBitsOfTheCpu) {
  const RandomModel model(GetParam());
  EXPECT_EQ(AnswersOf(model.file(), *Cuda()), AnswersOf(model.file(), *Cpu()));
}

INSTANTIATE_TEST_SUITE_P(Architectures, CudaModel, ::testing::ValuesIn(model_run::Architectures()),
                         [](const ::testing::TestParamInfo<std::string>& test) {
                           return model_run::TestName(test.param);
                         });

class CudaWeights : public ::testing::TestWithParam<DType> {};

TEST_P(CudaWeights, GiveTheBitsOfTheCpu) {
  for (const char* const architecture : {"llama", "qwen3moe"}) {
    const RandomModel model(architecture, GetParam());
    EXPECT_EQ(AnswersOf(model.file(), *Cuda()), AnswersOf(model.file(), *Cpu())) << architecture;
  }
}

std::vector<DType> WeightTypes() {
  std::vector<DType> types;
  for (int i = 0; i <= static_cast<int>(DType::kNVFP4); ++i) {
    const auto type = static_cast<DType>(i);
    if (CanQuantize(type)) types.push_back(type);
  }
  return types;
}

std::string NameOfType(const ::testing::TestParamInfo<DType>& test) {
  return std::string(InfoOf(test.param).name);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaWeights, ::testing::ValuesIn(WeightTypes()), NameOfType);

class CudaCells : public ::testing::TestWithParam<KvTypes> {};

TEST_P(CudaCells, AreContinuedByTheOtherBackend) {
  for (const char* const architecture : {"llama", "gemma2", "qwen3next"}) {
    const RandomModel model(architecture);
    const auto expected = AnswersOf(model.file(), *Cpu(), GetParam());
    EXPECT_EQ(AnswersOf(model.file(), *Cuda(), GetParam()), expected) << architecture;
    EXPECT_EQ(AnswersOver(model.file(), *Cpu(), *Cuda(), GetParam()), expected) << architecture;
    EXPECT_EQ(AnswersOver(model.file(), *Cuda(), *Cpu(), GetParam()), expected) << architecture;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, CudaCells,
    ::testing::Values(KvTypes{DType::kF32, DType::kF32}, KvTypes{DType::kF16, DType::kBF16},
                      KvTypes{DType::kQ8_0, DType::kQ8_0}, KvTypes{DType::kQ4_0, DType::kQ8_0},
                      KvTypes{DType::kQ8_0, DType::kQ4_0}),
    [](const ::testing::TestParamInfo<KvTypes>& test) {
      return std::string(InfoOf(test.param.k).name) + "_" + std::string(InfoOf(test.param.v).name);
    });

TEST(CudaLatents, AreContinuedByTheOtherBackend) {
  const RandomModel model("deepseek2");
  for (const KvTypes& types :
       {KvTypes{DType::kF16, DType::kF16}, KvTypes{DType::kQ8_0, DType::kQ8_0}}) {
    const auto expected = AnswersOf(model.file(), *Cpu(), types);
    EXPECT_EQ(AnswersOf(model.file(), *Cuda(), types), expected) << InfoOf(types.k).name;
    EXPECT_EQ(AnswersOver(model.file(), *Cpu(), *Cuda(), types), expected) << InfoOf(types.k).name;
    EXPECT_EQ(AnswersOver(model.file(), *Cuda(), *Cpu(), types), expected) << InfoOf(types.k).name;
  }
}

TEST(CudaLayers, MayBeTheLastOnes) {
  for (const char* const architecture : {"llama", "gemma3n", "t5", "qwen35"}) {
    const RandomModel model(architecture);
    const auto split = MakeSplitBackend(Cpu(), Cuda(), 1);
    EXPECT_EQ(AnswersOf(model.file(), *split), AnswersOf(model.file(), *Cpu())) << architecture;
  }
}

// The device routes the experts of its layers, and the host those of the others.
TEST(CudaLayers, RouteTheirOwnExperts) {
  for (const char* const architecture : {"qwen3moe", "gpt-oss", "llama4"}) {
    const RandomModel model(architecture);
    const auto expected = AnswersOf(model.file(), *Cpu());
    for (const int boundary : {0, 1, 64}) {
      const auto split = MakeSplitBackend(Cpu(), Cuda(), boundary);
      EXPECT_EQ(AnswersOf(model.file(), *split), expected) << architecture << ' ' << boundary;
    }
  }
}

}  // namespace
}  // namespace kvcache::cuda_model_test
