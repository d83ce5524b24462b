// Which layers a GPU gets, and what an engine does with a GPU that is not there, too small, or fails.
#include "engine/gpu/gpu_backend.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "kvcache/cpu_backend.h"
#include "make_model/make_model.h"
#include "support/remote_backend.h"

namespace kvcache::gpu_backend_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kPlenty = 4096 * kMiB;

// Four layers of 10 MiB, 1 KiB for a token in each.
GpuNeeds FourLayers() {
  GpuNeeds needs{.before = 5 * kMiB, .layers = {}, .behind = 20 * kMiB, .scratch = kMiB};
  needs.layers.assign(4, {.weights = 10 * kMiB, .per_token = 1024, .per_sequence = 0});
  return needs;
}

// The least free memory that has room for the last `layers` layers and `tokens` tokens: what they take, and the part
// that stays free.
std::int64_t MemoryOf(const GpuNeeds& needs, int layers, std::int64_t tokens) {
  const std::int64_t before = layers == 4 ? needs.before : 0;
  const std::int64_t taken =
      before + needs.behind + needs.scratch +
      layers * (needs.layers[0].weights + tokens * needs.layers[0].per_token);
  std::int64_t bytes = taken;
  while (bytes - (512 * kMiB + bytes / 32) < taken) {
    bytes += std::max<std::int64_t>(1, taken - (bytes - (512 * kMiB + bytes / 32)));
  }
  return bytes;
}

TEST(GpuPlan, TakesAsManyLayersAsLeaveRoomForTheContext) {
  const GpuNeeds needs = FourLayers();
  const GpuWants wants{.context = 1000};
  for (int layers = 1; layers <= 4; ++layers) {
    const std::int64_t bytes = MemoryOf(needs, layers, 1000);
    const GpuPlan plan = PlanOfFreeMemory(needs, wants, bytes);
    EXPECT_EQ(plan.layers, layers);
    EXPECT_EQ(plan.pool_tokens, 1000);
    EXPECT_LT(PlanOfFreeMemory(needs, wants, bytes - 1).layers, layers);
  }
  EXPECT_EQ(PlanOfFreeMemory(needs, wants, kMiB).layers, 0);
}

TEST(GpuPlan, SaysHowManyLayersFit) {
  const GpuNeeds needs = FourLayers();
  const GpuWants wants{.context = 1000};
  const std::int64_t bytes = MemoryOf(needs, 2, 1000);
  const auto two = PlanOfLayers(2, needs, wants, bytes);
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ(two->layers, 2);
  const auto three = PlanOfLayers(3, needs, wants, bytes);
  EXPECT_EQ(three.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(three.status().message().find("2 layers fit"), std::string::npos)
      << three.status().message();
  EXPECT_EQ(PlanOfLayers(99, needs, wants, kPlenty)->layers, 4);
}

class ChooseBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "choose_backend." + std::to_string(getpid()) + ".gguf";
    const Status made = make_model::MakeModel({.architecture = "llama"}, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    file_ = std::move(GgufFile::Open(path_)).value();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static FindGpu Found(std::int64_t free_bytes) {
    return [free_bytes]() -> Result<Gpu> {
      return Gpu{.name = "a GPU", .free_bytes = free_bytes, .open = [](int) {
                   auto cpu = std::move(MakeCpuBackend({.threads = 1})).value();
                   return Result<std::unique_ptr<Backend>>(
                       std::make_unique<testing::RemoteBackend>(std::move(cpu)));
                 }};
    };
  }
  static Result<Gpu> Missing() { return Status(StatusCode::kNotFound, "no driver"); }

  static BackendWants Wants(int layers) {
    return {.threads = 1, .gpu_layers = layers, .cache = {.context = 128}};
  }

  std::string path_;
  std::unique_ptr<GgufFile> file_;
};

TEST_F(ChooseBackendTest, UsesTheProcessorWithoutAGpu) {
  const auto chosen = ChooseBackend(*file_, Wants(-1), Missing);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->backend->name(), "cpu");
  EXPECT_EQ(chosen->machine, "");
  const auto asked = ChooseBackend(*file_, Wants(1), Missing);
  EXPECT_EQ(asked.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(asked.status().message(), "1 layers are asked for on a GPU: no driver");
  const auto none = ChooseBackend(*file_, Wants(0), Found(kPlenty));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->backend->name(), "cpu");
}

TEST_F(ChooseBackendTest, DividesTheLayers) {
  const auto all = ChooseBackend(*file_, Wants(-1), Found(kPlenty));
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->backend->name(), "remote");
  EXPECT_GT(all->plan.layers, 1);
  EXPECT_TRUE(all->machine.starts_with("a GPU: ")) << all->machine;
  const auto one = ChooseBackend(*file_, Wants(1), Found(kPlenty));
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one->backend->name(), "split");
  EXPECT_EQ(one->plan.layers, 1);
  const auto none = ChooseBackend(*file_, Wants(-1), Found(kMiB));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->backend->name(), "cpu");
}

TEST_F(ChooseBackendTest, ComputesWithTheProcessorWhatAGpuCannot) {
  const FindGpu broken = []() -> Result<Gpu> {
    return Gpu{.name = "a GPU",
               .free_bytes = kPlenty,
               .open = [](int) -> Result<std::unique_ptr<Backend>> {
                 return Status(StatusCode::kIo, "the device is lost");
               }};
  };
  const auto chosen = ChooseBackend(*file_, Wants(-1), broken);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->backend->name(), "cpu");
  EXPECT_EQ(chosen->machine, "a GPU is not used: the device is lost");
  EXPECT_EQ(ChooseBackend(*file_, Wants(2), broken).status().code(), StatusCode::kIo);
}

}  // namespace
}  // namespace kvcache::gpu_backend_test
