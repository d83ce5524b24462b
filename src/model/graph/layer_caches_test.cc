#include "model/graph/layer_caches.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kvcache/cpu_backend.h"

namespace kvcache::layer_caches_test {
namespace {

constexpr int kBatch = 4;
constexpr SequenceId kSequence{0};

class LayerCachesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Cache> Make(const std::vector<AttentionSpan>& spans, int capacity = 64) {
    auto cache = MakeLayerCaches(spans, {});
    const Status status = cache->Init(*backend_, {.k_type = DType::kF32,
                                                  .v_type = DType::kF32,
                                                  .max_sequences = 1,
                                                  .capacity = capacity,
                                                  .max_batch = kBatch});
    EXPECT_TRUE(status.ok()) << status.message();
    return cache;
  }

  static void Start(Cache& cache, Position first) {
    std::vector<Position> positions(kBatch);
    std::iota(positions.begin(), positions.end(), first);
    const std::vector<SequenceId> sequences(kBatch, kSequence);
    const Status status =
        cache.StartForward({.positions = positions, .sequences = sequences}, ForwardMode::kCompute);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::unique_ptr<Backend> backend_ = std::move(MakeCpuBackend({.threads = 1})).value();
};

TEST_F(LayerCachesTest, EachLayerSeesAsFarAsItsOwnReach) {
  const std::vector<AttentionSpan> spans = {{.window = 8}, {}, {.window = 8}, {.chunk = 16}, {}};
  const auto cache = Make(spans);
  Start(*cache, 0);
  for (std::size_t layer = 0; layer < spans.size(); ++layer) {
    cache->SetLayer(static_cast<int>(layer));
    EXPECT_EQ(cache->Visible().window, spans[layer].window) << layer;
    EXPECT_EQ(cache->Visible().chunk, spans[layer].chunk) << layer;
  }
}

TEST_F(LayerCachesTest, GoesBackByAWindow) {
  const auto cache = Make({{.window = 8}, {}});
  for (Position p = 0; p < 40; p += kBatch) Start(*cache, p);
  // The window's cache retains 16 tokens before the last batch of 4: 20 to 39. The query at 28 sees
  // 21 to 28.
  EXPECT_EQ(*cache->PrepareRestore(kSequence, 28), 28);
  EXPECT_EQ(*cache->PrepareRestore(kSequence, 26), 0);
}

TEST_F(LayerCachesTest, AWindowOfTheWholeContextKeepsAll) {
  const auto cache = Make({{.window = 64}});
  for (Position p = 0; p < 64; p += kBatch) Start(*cache, p);
  EXPECT_EQ(*cache->PrepareRestore(kSequence, 1), 1);
}

TEST_F(LayerCachesTest, TheWidestWindowIsNoOverflow) {
  EXPECT_EQ(Make({{.window = 2147483647}, {.window = 1}})->memory()->AllocatedBytes(), 0);
}

}  // namespace
}  // namespace kvcache::layer_caches_test
