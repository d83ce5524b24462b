// Encoders use packed weights (engine/packed), with the same bits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "embedding/model_file_testing.h"
#include "engine/packed/packed_weights.h"
#include "platform/wall_clock.h"

namespace kvcache::embedder_test {
namespace {

// All files are old.
std::int64_t Tomorrow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch() + std::chrono::hours(24))
      .count();
}

TEST(PackedEmbedder, HasTheSameBits) {
  const WallClockForTests clock(&Tomorrow);
  const std::string folder = ::testing::TempDir() + "packed_embedder." + std::to_string(getpid());
  for (const char* const architecture : {"bert", "modern-bert", "gemma-embedding", "qwen3"}) {
    SCOPED_TRACE(architecture);
    const ModelFile file(RequestOf(architecture));
    const Inputs inputs = SomeInputs();
    const auto vectors = [&] { return file.Open()->Embed(inputs).value().values; };
    const std::vector<float> expected = vectors();
    int kept = 0;
    PackedWeightsOptions options;
    options.directory = folder;
    options.min_bytes = 0;
    options.tell = [&](packed::ModelPanels::Report report, const std::string& text) {
      EXPECT_EQ(report, packed::ModelPanels::Report::kDone) << text;
      ++kept;
    };
    UsePackedWeights(options);
    {
      const auto embedder = file.Open();
      FlushPackedWeights();
      EXPECT_EQ(embedder->Embed(inputs).value().values, expected);
    }
    EXPECT_EQ(kept, 1);
    EXPECT_EQ(vectors(), expected);
    FlushPackedWeights();
    EXPECT_EQ(kept, 1);
    UsePackedWeights({});
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvcache::embedder_test
