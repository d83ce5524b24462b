// Which layers a GPU gets, and what an engine does with a GPU that is not there, too small, or fails.
#include "engine/gpu/gpu_backend.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cpu_backend.h"
#include "make_model/make_model.h"
#include "support/remote_backend.h"

namespace kvcache::gpu_backend_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kPlenty = 4096 * kMiB;

// Four layers of 10 MiB, 1 KiB for a token in each.
GpuNeeds FourLayers() {
  GpuNeeds needs{
      .before = 5 * kMiB, .layers = {}, .behind = 20 * kMiB, .scratch = kMiB, .calls = 3 * kMiB};
  needs.layers.assign(4, {.weights = 10 * kMiB, .per_token = 1024, .per_sequence = 0});
  return needs;
}

// The least free memory that has room for the last `layers` layers and `tokens` tokens: what they take, and the part
// that stays free.
std::int64_t MemoryOf(const GpuNeeds& needs, int layers, std::int64_t tokens) {
  const std::int64_t before = layers == 4 ? needs.before : 0;
  const std::int64_t taken =
      before + needs.behind + needs.scratch + needs.calls +
      layers * (needs.layers[0].weights + tokens * needs.layers[0].per_token);
  std::int64_t bytes = taken;
  while (bytes - (256 * kMiB + bytes / 32) < taken) {
    bytes += std::max<std::int64_t>(1, taken - (bytes - (256 * kMiB + bytes / 32)));
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

TEST(GpuPlan, GivesAPoolHalfOfTheGpuOrWhatIsWanted) {
  const GpuPlan plan{.layers = 4, .pool_tokens = 1000};
  EXPECT_EQ(PoolTokens(plan, 100, 0), 500);
  EXPECT_EQ(PoolTokens(plan, 700, 0), 700);
  EXPECT_EQ(PoolTokens(plan, 7000, 0), 1000);
  EXPECT_EQ(PoolTokens(plan, 700, 300), 300) << "the host has the other layers";
  EXPECT_EQ(PoolTokens(plan, 700, 3000), 700);
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
  const std::string processor = "processor: " + CpuTargetName() + " with 1 thread";
  EXPECT_EQ(MachineLine(*chosen, 0), processor + "; no GPU: no driver");
  const auto asked = ChooseBackend(*file_, Wants(1), Missing);
  EXPECT_EQ(asked.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(asked.status().message(), "1 layers are asked for on a GPU: no driver");
  const auto none = ChooseBackend(*file_, Wants(0), Found(kPlenty));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->backend->name(), "cpu");
  EXPECT_EQ(MachineLine(*none, 0), processor) << "a reason for what was asked for";
}

TEST_F(ChooseBackendTest, DividesTheLayers) {
  const auto all = ChooseBackend(*file_, Wants(-1), Found(kPlenty));
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->backend->name(), "remote");
  EXPECT_GT(all->plan.layers, 1);
  EXPECT_TRUE(MachineLine(*all, 0).starts_with("a GPU: ")) << MachineLine(*all, 0);
  auto one = ChooseBackend(*file_, Wants(1), Found(kPlenty));
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one->backend->name(), "split");
  EXPECT_EQ(one->plan.layers, 1);
  EXPECT_GT(one->plan.token_bytes, 0);
  EXPECT_LT(one->plan.token_bytes, all->plan.token_bytes);
  one->plan.fixed_bytes = 5000 * kMiB;
  one->plan.token_bytes = kMiB / 2;
  one->layers = 30;
  one->processor = "AVX3 with 8 threads";
  EXPECT_EQ(MachineLine(*one, 2000),
            "a GPU: 1 of 30 layers, 6,000 MiB with 2,000 tokens of keys and values; processor: "
            "AVX3 with 8 threads");
  const auto none = ChooseBackend(*file_, Wants(-1), Found(kMiB));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->backend->name(), "cpu");
  EXPECT_EQ(none->reason, "a GPU has 1 MiB free, too little for a layer and the context");
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
  EXPECT_EQ(chosen->reason, "a GPU: the device is lost");
  EXPECT_EQ(ChooseBackend(*file_, Wants(2), broken).status().code(), StatusCode::kIo);
}

// What comes beside a model takes a GPU's memory too.
TEST_F(ChooseBackendTest, CountsAdaptersAndADraftHead) {
  const auto fixed_of = [&](const std::vector<EngineAdapter>& adapters, std::string head) {
    BackendWants wants = Wants(-1);
    wants.adapters = adapters;
    wants.draft_head = std::move(head);
    auto choice = ChooseBackend(*file_, wants, Found(kPlenty));
    EXPECT_TRUE(choice.ok()) << choice.status().message();
    return choice.ok() ? choice->plan.fixed_bytes : 0;
  };
  const std::int64_t alone = fixed_of({}, "");
  // A file with tensors of the layers' names; the plan does not look at its keys.
  const std::int64_t beside = fixed_of({{.path = path_}}, "");
  std::int64_t bytes = 0;
  for (const GgufTensor& tensor : file_->tensors()) {
    bytes += static_cast<std::int64_t>(tensor.bytes.size());
  }
  EXPECT_EQ(beside - alone, bytes);
  BackendWants wants = Wants(-1);
  wants.draft_head = path_;
  const auto choice = ChooseBackend(*file_, wants, Found(kPlenty));
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->backend->name(), "cpu");
  EXPECT_NE(choice->reason.find("the file has no draft head"), std::string::npos) << choice->reason;
}

// A draft head in the model's own file counts if it is used, with its keys and values.
TEST(GpuPlan, CountsADraftHeadThatIsUsed) {
  const std::string path =
      ::testing::TempDir() + "gpu_plan_head." + std::to_string(getpid()) + ".gguf";
  make_model::Request request{.architecture = "qwen35"};
  request.shape.family.nextn_layers = 1;
  const Status made = make_model::MakeModel(request, path);
  ASSERT_TRUE(made.ok()) << made.message();
  const auto file = std::move(GgufFile::Open(path)).value();
  std::filesystem::remove(path);
  const auto shapes = MakeShapeBackend();
  const auto model = std::move(LoadModel(*file, *shapes)).value();
  const GpuWants wants{.context = 512, .sequences = 2};
  const GpuNeeds without = NeedsOf({.model = *file}, model->info(), wants);
  ASSERT_TRUE(model->LoadHead(*file).ok());
  const GpuNeeds with = NeedsOf({.model = *file, .head = file.get()}, model->info(), wants);
  EXPECT_GT(with.behind, without.behind);
  EXPECT_GT(with.layers.back().per_token, without.layers.back().per_token);
  EXPECT_EQ(with.layers.front().per_token, without.layers.front().per_token);
}

// Attention leaves a partial result for each head, split and token of a pass, up to a bound.
TEST_F(ChooseBackendTest, CountsTheMemoryOfCalls) {
  const auto shapes = MakeShapeBackend();
  const auto model = std::move(LoadModel(*file_, *shapes)).value();
  const auto calls = [&](int context, int sequences, int chunk) {
    return NeedsOf({.model = *file_}, model->info(),
                   {.context = context, .sequences = sequences, .prefill_chunk = chunk})
        .calls;
  };
  EXPECT_EQ(calls(256, 1, 1), 128 * kMiB);
  EXPECT_GT(calls(1 << 20, 32, 1), 128 * kMiB);
  EXPECT_EQ(calls(1 << 20, 40, 1), calls(1 << 20, 1, 40));
  EXPECT_EQ(calls(1 << 20, 1, 512), 512 * kMiB);
}

}  // namespace
}  // namespace kvcache::gpu_backend_test
