// A session on a model whose layers slide: what it keeps, and how far it goes back for nothing.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"
#include "model/layer_memory.h"

namespace kvcache::window_session_test {
namespace {

constexpr int kWindow = 24, kChunk = 16, kTokens = 400;

std::vector<std::int32_t> SomeTokens(int count) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (i * 37) % 250);
  return tokens;
}

class WindowSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "window_session." + std::to_string(getpid()) + ".gguf";
    const Status made =
        make_model::MakeModel({.shape = {.layers = 3, .window = kWindow}, .seed = 5}, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    auto engine = Engine::Open(
        path_,
        {.k_type = DType::kF32, .v_type = DType::kF32, .context = 4096, .prefill_chunk = kChunk});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::vector<float> LogitsAfter(Session& session) {
    const auto logits = session.LastLogits();
    EXPECT_TRUE(logits.ok());
    return {logits->begin(), logits->end()};
  }

  std::string path_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(WindowSessionTest, KeepsWindowsAndABatchWhateverTheTextsLength) {
  Session session(*engine_, SequenceId{0});
  ASSERT_TRUE(session.Append(SomeTokens(kTokens)).ok());
  const std::vector<LayerMemory>& layers = engine_->info().memory;
  ASSERT_EQ(layers.size(), 3u);
  std::int64_t bytes = 0;
  for (const LayerMemory& layer : layers) {
    EXPECT_EQ(layer.kind, LayerMemory::Kind::kSliding);
    EXPECT_EQ(layer.window, kWindow);
    const std::int64_t cells =
        (layer.retained_tokens + kChunk + kCellTile - 1) / kCellTile * kCellTile;
    bytes += cells * BytesPerSequence(layer, DType::kF32, DType::kF32) / layer.retained_tokens;
  }
  EXPECT_EQ(engine_->cache().memory()->AllocatedBytes(), bytes);
  EXPECT_EQ(BytesPerToken(layers, DType::kF32, DType::kF32), 0);
}

// Going back by up to a window's tokens (and those of the last pass, before which cells were
// evicted) computes nothing again; going further back computes everything. The bits are the same
// either way.
TEST_F(WindowSessionTest, GoesBackByAWindow) {
  const std::vector<std::int32_t> tokens = SomeTokens(kTokens);
  constexpr Position kFurthest = kTokens - kChunk - kWindow;
  for (const Position kept : {kTokens - 1, kTokens - kWindow, kFurthest, kFurthest - 1}) {
    Session plain(*engine_, SequenceId{0});
    ASSERT_TRUE(plain.Append(std::span(tokens).first(static_cast<std::size_t>(kept))).ok());
    ASSERT_TRUE(plain.Append(std::vector<std::int32_t>{7}).ok());
    const std::vector<float> expected = LogitsAfter(plain);
    ASSERT_TRUE(plain.Truncate(0).ok());

    ASSERT_TRUE(plain.Append(tokens).ok());
    const bool resumes = engine_->cache().CanResume(SequenceId{0}, kept);
    EXPECT_EQ(resumes, kept >= kFurthest) << kept;
    ASSERT_TRUE(plain.Truncate(kept).ok());
    EXPECT_EQ(plain.position(), kept);
    ASSERT_TRUE(plain.Append(std::vector<std::int32_t>{7}).ok());
    EXPECT_EQ(LogitsAfter(plain), expected) << kept;
  }
}

}  // namespace
}  // namespace kvcache::window_session_test
