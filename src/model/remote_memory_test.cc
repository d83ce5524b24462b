// A model over a backend whose memory the host cannot touch gives the logits of the CPU backend. Kernels get
// addresses of the backend alone: weights, activations, states, cells.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/split/split_backend.h"
#include "kvcache/cpu_backend.h"
#include "model/model_run_testing.h"
#include "support/remote_backend.h"

namespace kvcache::remote_memory_test {
namespace {

using model_run::Answers;
using model_run::AnswersOf;

std::unique_ptr<Backend> Cpu() {
  return std::move(MakeCpuBackend({.threads = 1})).value();
}

class RemoteMemory : public ::testing::TestWithParam<std::string> {
 protected:
  Answers Over(Backend& backend) { return AnswersOf(model_.file(), backend); }

  model_run::RandomModel model_{GetParam()};
};

TEST_P(RemoteMemory, GivesTheSameAnswers) {
  const Answers expected = Over(*Cpu());
  EXPECT_NE(std::ranges::max(expected.states), 0.0f);
  testing::RemoteBackend remote(Cpu());
  EXPECT_EQ(Over(remote), expected);
}

// The first layer belongs to one backend, the others to the other.
TEST_P(RemoteMemory, GivesTheSameAnswersWhenLayersAreDivided) {
  const Answers expected = Over(*Cpu());
  SplitBackend remote_behind(Cpu(), std::make_unique<testing::RemoteBackend>(Cpu()), 1);
  EXPECT_EQ(Over(remote_behind), expected);
  SplitBackend remote_before(std::make_unique<testing::RemoteBackend>(Cpu()), Cpu(), 1);
  EXPECT_EQ(Over(remote_before), expected);
  SplitBackend both(std::make_unique<testing::RemoteBackend>(Cpu()),
                    std::make_unique<testing::RemoteBackend>(Cpu()), 1);
  EXPECT_EQ(Over(both), expected);
}

INSTANTIATE_TEST_SUITE_P(All, RemoteMemory, ::testing::ValuesIn(model_run::Architectures()),
                         [](const ::testing::TestParamInfo<std::string>& test) {
                           return model_run::TestName(test.param);
                         });

// Each layer's experts are routed where the layer is: by a backend that has a routing of its own, else by the host.
TEST(DividedExperts, AreRoutedByTheirLayersBackend) {
  for (const std::string architecture : {"qwen3moe", "gpt-oss", "llama4"}) {
    const model_run::RandomModel model(architecture);
    const Answers expected = AnswersOf(model.file(), *Cpu());
    testing::RemoteBackend whole(Cpu(), testing::RemoteRouting::kByBackend);
    EXPECT_EQ(AnswersOf(model.file(), whole), expected) << architecture;
    for (const int boundary : {0, 1, 64}) {
      auto remote =
          std::make_unique<testing::RemoteBackend>(Cpu(), testing::RemoteRouting::kByBackend);
      const testing::RemoteBackend& behind = *remote;
      SplitBackend split(Cpu(), std::move(remote), boundary);
      EXPECT_EQ(AnswersOf(model.file(), split), expected) << architecture;
      EXPECT_EQ(behind.routed() > 0, boundary < 64) << architecture << ' ' << boundary;
      // llama4 has no experts in its first layer.
      const bool has_all = boundary == 0 || (boundary == 1 && architecture == "llama4");
      EXPECT_EQ(behind.routed() == whole.routed(), has_all) << architecture << ' ' << boundary;
    }
    SplitBackend both(
        std::make_unique<testing::RemoteBackend>(Cpu(), testing::RemoteRouting::kByBackend),
        std::make_unique<testing::RemoteBackend>(Cpu(), testing::RemoteRouting::kByBackend), 1);
    EXPECT_EQ(AnswersOf(model.file(), both), expected) << architecture;
  }
}

// A kernel that gets an address of the host fails, and the host cannot read a buffer of the backend.
TEST(RemoteBackend, RefusesAddressesOfTheHost) {
  testing::RemoteBackend backend(Cpu());
  const auto buffer = std::move(backend.Allocate(64)).value();
  std::vector<float> values(16, 1.0f);
  const TensorView own = TensorView::Dense(buffer->data(), DType::kF32, 16);
  const TensorView host = TensorView::Dense(values.data(), DType::kF32, 16);
  ASSERT_TRUE(backend.CopyFromHost(std::as_bytes(std::span(values)), own).ok());
  EXPECT_TRUE(backend.Scale(own, 2.0f).ok());
  EXPECT_EQ(backend.Scale(host, 2.0f).code(), StatusCode::kInternal);
  EXPECT_EQ(backend.Add(own, host).code(), StatusCode::kInternal);
  EXPECT_EQ(backend.Scale(TensorView::Dense(buffer->data(), DType::kF32, 17), 2.0f).code(),
            StatusCode::kInternal);
  ASSERT_TRUE(backend.CopyToHost(own, std::as_writable_bytes(std::span(values))).ok());
  EXPECT_EQ(values, std::vector<float>(16, 2.0f));
}

}  // namespace
}  // namespace kvcache::remote_memory_test
