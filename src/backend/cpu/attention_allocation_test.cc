// Counts allocations: attention and stores make none once they are warm.
#include <cstdint>
#include <vector>

#include "backend/cpu/attention_testing.h"
#include "gtest/gtest.h"
#include "support/counting_new.h"

namespace kvcache::cpu {
namespace {

// A pass's inputs, made outside the counted stretch.
struct Pass {
  std::vector<Position> positions;
  std::vector<std::int32_t> index;
  std::vector<HistoryRun> runs;
  std::vector<std::span<const HistoryRun>> histories;
  std::vector<float> q;
  std::vector<float> out;

  Pass(const Scene& scene, int tokens, Position length)
      : runs{{0, 0, length}},
        histories{runs},
        q(static_cast<std::size_t>(tokens * scene.options().heads * 64), 0.5f),
        out(q.size()) {
    for (int i = 0; i < tokens; ++i) positions.push_back(length - tokens + i);
    index.assign(positions.size(), 0);
  }

  Status Run(KvBackend& backend, const Scene& scene) {
    const auto tokens = static_cast<std::int64_t>(positions.size());
    const int heads = scene.options().heads;
    return backend.Attention(scene.layer(),
                             TensorView::Dense(q.data(), DType::kF32, 64, heads, tokens),
                             {.positions = positions,
                              .histories_index = index,
                              .histories = histories,
                              .bidirectional = {}},
                             {}, TensorView::Dense(out.data(), DType::kF32, 64, heads, tokens));
  }
};

TEST(AttentionAllocation, NoneOnceWarm) {
  const auto backend = CpuWithThreads(2);
  Scene scene({{2, 64, 64}, 4, DType::kF16, DType::kF16}, Scene::Contiguous({2000}));
  scene.Fill(*backend);
  for (const int tokens : {1, 300}) {
    Pass warm(scene, tokens, 2000);
    ASSERT_TRUE(warm.Run(*backend, scene).ok());
    Pass shorter(scene, tokens, 1700);
    const std::int64_t before = testing::Allocations();
    ASSERT_TRUE(warm.Run(*backend, scene).ok());
    ASSERT_TRUE(shorter.Run(*backend, scene).ok());
    EXPECT_EQ(testing::Allocations() - before, 0) << tokens;
  }
}

TEST(AttentionAllocation, StoresMakeNone) {
  const auto backend = CpuWithThreads(2);
  Scene scene({{2, 64, 64}, 4, DType::kF16, DType::kF16}, Scene::Contiguous({2000}));
  std::vector<float> rows(2 * 64 * 300);
  for (const std::int32_t tokens : {1, 300}) {
    const TensorView view = TensorView::Dense(rows.data(), DType::kF32, 64, 2, tokens);
    const CellRun cells[] = {{7, tokens}};
    const std::int64_t before = testing::Allocations();
    ASSERT_TRUE(backend->StoreKv(scene.layer(), view, view, cells).ok());
    EXPECT_EQ(testing::Allocations() - before, 0) << tokens;
  }
}

}  // namespace
}  // namespace kvcache::cpu
