// The causal cache: layers, their storage and views, and what Init refuses.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/causal/causal_cache_testing.h"

namespace kvcache::causal_views_test {
namespace {

TEST_F(CausalCacheTest, LayersDifferInShapeAndAreMadeWhenWritten) {
  Open(F32Options(1, 16));
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), 0);
  EXPECT_EQ(backend_.live_bytes(), 0);
  const Tokens tokens{{0, 0, 1}, {0, 1, 2}};
  const KvShape other{.kv_heads = 1, .k_dim = 6, .v_dim = 8};
  ASSERT_TRUE(StartForward(*cache_, tokens).ok());
  ASSERT_TRUE(PutContents(*cache_, tokens, 3, other).ok());
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), 16 * (6 + 8) * 4);
  ASSERT_TRUE(PutContents(*cache_, tokens, 0, kShape).ok());
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), 16 * (6 + 8) * 4 + 16 * 2 * (4 + 3) * 4);
  EXPECT_EQ(backend_.live_bytes(), cache_->memory()->AllocatedBytes());
  EXPECT_EQ(cache_->Storage()->shape, kShape);
  cache_->SetLayer(3);
  EXPECT_EQ(cache_->Storage()->shape, other);
  cache_->SetLayer(2);
  EXPECT_EQ(cache_->Storage().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cache_->Storage().status().message(), "layer 2 has no storage; call Put for it first");
  EXPECT_EQ(cache_->Get().status().code(), StatusCode::kNotFound);
}

TEST_F(CausalCacheTest, RefusedPuts) {
  Open(F32Options(1, 8));
  const Tokens tokens{{0, 0, 1}, {0, 1, 2}};
  EXPECT_EQ(PutContents(*cache_, tokens, 0, kShape).message(),
            "Put outside a forward pass; call StartForward first");
  ASSERT_TRUE(StartForward(*cache_, tokens).ok());
  EXPECT_EQ(PutContents(*cache_, {{0, 0, 1}}, 0, kShape).message(),
            "K has 1 tokens and V has 1; both must have the batch's 2");
  ASSERT_TRUE(PutContents(*cache_, tokens, 0, kShape).ok());
  EXPECT_EQ(
      PutContents(*cache_, tokens, 0, {3, 4, 3}).message(),
      "layer 0 has 2 heads of 4 (K) and 3 (V) values; this Put has 3 heads of 4 (K) and 3 (V) "
      "values");
  EXPECT_EQ(PutContents(*cache_, tokens, -1, kShape).message(), "layer -1 is not in [0, 4096)");
  EXPECT_EQ(PutContents(*cache_, tokens, 4096, kShape).message(), "layer 4096 is not in [0, 4096)");
  float data[64] = {};
  const TensorView k = TensorView::Dense(data, DType::kF32, 4, 2, 2);
  const TensorView one_head = TensorView::Dense(data, DType::kF32, 4, 1, 2);
  const TensorView half = TensorView::Dense(data, DType::kF16, 4, 2, 2);
  cache_->SetLayer(0);
  EXPECT_EQ(cache_->Put(k, one_head).message(), "K has 2 heads and V has 1; must be as many");
  EXPECT_EQ(cache_->Put(k, half).message(), "K is f32 and V is f16; both must be f32");
}

TEST_F(CausalCacheTest, HugeLayersAreRefusedWithoutOverflow) {
  Open(F32Options(1, 1 << 10));
  float data[1] = {};
  TensorView k = TensorView::Dense(data, DType::kF32, 1, 1, 1);
  k.dims[0] = k.dims[1] = std::int64_t{1} << 30;
  ASSERT_TRUE(StartForward(*cache_, {{0, 0, 1}}).ok());
  EXPECT_EQ(cache_->Put(k, k).code(), StatusCode::kOutOfMemory);
  k.dims[0] = std::int64_t{1} << 31;
  EXPECT_EQ(cache_->Put(k, k).code(), StatusCode::kInvalidArgument);
}

TEST_F(CausalCacheTest, ViewsOfEachFormShowTheSameHistory) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool transposed : {false, true}) {
      CacheConfig config;
      config.v_transposed = transposed;
      config.mask_type = type == DType::kF32 ? DType::kF32 : DType::kF16;
      Open({type, type, 2, 5, 8}, config);
      Forward({{1, 1, 21}, {1, 0, 20}, {1, 2, 22}});
      auto history = cache_->Get();
      ASSERT_TRUE(history.ok());
      EXPECT_EQ(MaskRows(history->mask), (Rows{"00.", "0..", "000"}));
      EXPECT_EQ(history->k.dims, (std::array<std::int64_t, 4>{4, 2, 3, 1}));
      EXPECT_EQ(history->v.dims, transposed ? (std::array<std::int64_t, 4>{3, 3, 2, 1})
                                            : (std::array<std::int64_t, 4>{3, 2, 3, 1}));
      for (int cell = 0; cell < 3; ++cell) {
        const auto content = static_cast<std::uint32_t>(20 + cell);
        for (int head = 0; head < 2; ++head) {
          for (int d = 0; d < 4; ++d) {
            EXPECT_EQ(KeyAt(*history, cell, head, d),
                      testing::Rounded(type, KeyContent(content, 0, kShape)[head * 4 + d]));
          }
          for (int d = 0; d < 3; ++d) {
            EXPECT_EQ(ValueAt(*history, transposed, cell, head, d),
                      testing::Rounded(type, ValueContent(content, 0, kShape)[head * 3 + d]));
          }
        }
      }
    }
  }
}

TEST_F(CausalCacheTest, TiledLayoutHasNoViews) {
  CacheConfig config;
  config.layout = KvLayout::kTiled;
  Open(F32Options(1, 4), config);
  EXPECT_EQ(Forward({{0, 0, 1}}), (Rows{"unsupported"}));
  EXPECT_EQ(cache_->Storage()->layout, KvLayout::kTiled);
  EXPECT_EQ(cache_->Storage()->cells, 16);
  EXPECT_EQ(testing::ReadKey(*cache_->Storage(), 0), KeyContent(1, 0, kShape));
}

TEST_F(CausalCacheTest, InitRefuses) {
  const struct {
    CacheOptions options;
    StatusCode code;
  } kCases[] = {
      {F32Options(0, 4), StatusCode::kInvalidArgument},
      {F32Options(1, 0), StatusCode::kInvalidArgument},
      {F32Options(1, -5), StatusCode::kInvalidArgument},
      {F32Options(1, 4, 0), StatusCode::kInvalidArgument},
      {F32Options(1 << 20, 1 << 20), StatusCode::kInvalidArgument},
      {{DType::kQ8_0, DType::kF16, 1, 4, 1}, StatusCode::kUnsupported},
      {{DType::kF16, DType::kI32, 1, 4, 1}, StatusCode::kUnsupported},
  };
  auto cache = MakeCausalCache();
  EXPECT_EQ(StartForward(*cache, {{0, 0}}).message(),
            "the cache is not initialised; call Init first");
  for (const auto& c : kCases) EXPECT_EQ(cache->Init(backend_, c.options).code(), c.code);
  EXPECT_TRUE(cache->Init(backend_, F32Options(1, 4)).ok());  // the failed calls changed nothing
  EXPECT_EQ(cache->Init(backend_, F32Options(1, 4)).message(),
            "Init was already called; make a new cache");
}

TEST_F(CausalCacheTest, InitChecksTheConfig) {
  struct Case {
    CacheConfig config;
    StatusCode code;
    std::string message;
  };
  const Case kCases[] = {
      {{.cell_padding = 0}, StatusCode::kInvalidArgument, "padding is 0; must be in [1, 65536]"},
      {{.layout = KvLayout::kTiled, .v_transposed = true},
       StatusCode::kInvalidArgument,
       "v_transposed is set for the tiled layout; it needs the plain layout"},
      {{.mask_type = DType::kI8}, StatusCode::kUnsupported, "mask_type is i8; must be f32 or f16"},
  };
  auto cache = MakeCausalCache();
  CacheOptions options = F32Options(1, 4);
  for (const Case& c : kCases) {
    options.config = c.config;
    const Status status = cache->Init(backend_, options);
    EXPECT_EQ(status.code(), c.code);
    EXPECT_EQ(status.message(), c.message);
  }
  options.config = CacheConfig{};
  EXPECT_TRUE(cache->Init(backend_, options).ok()) << "the refused calls changed nothing";
}

TEST_F(CausalCacheTest, WithoutAConfigTheBackendsIsTaken) {
  ReferenceBackend tiled(CacheConfig{.layout = KvLayout::kTiled, .cell_padding = 16});
  auto preferred = MakeCausalCache();
  ASSERT_TRUE(preferred->Init(tiled, F32Options(1, 4)).ok());
  ASSERT_TRUE(StartForward(*preferred, {{0, 0, 1}}).ok());
  ASSERT_TRUE(PutContents(*preferred, {{0, 0, 1}}, 0, kShape).ok());
  EXPECT_EQ(preferred->Storage()->layout, KvLayout::kTiled);
}

TEST_F(CausalCacheTest, CloseIsSafeAnywhere) {
  Open(F32Options(1, 4));
  ASSERT_TRUE(StartForward(*cache_, {{0, 0, 1}}).ok());
  ASSERT_TRUE(PutContents(*cache_, {{0, 0, 1}}, 0, kShape).ok());
  EXPECT_GT(backend_.live_bytes(), 0);
  for (int i = 0; i < 2; ++i) {
    cache_->Close();
    EXPECT_EQ(backend_.live_bytes(), 0);
    EXPECT_EQ(cache_->memory()->AllocatedBytes(), 0);
    EXPECT_TRUE(cache_->Visible().positions.empty());
    EXPECT_FALSE(cache_->CanResume(SequenceId{0}, 0));
    EXPECT_EQ(PutContents(*cache_, {{0, 0, 1}}, 0, kShape).message(),
              "the cache is closed; make a new one");
    EXPECT_EQ(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).message(),
              "the cache is closed; make a new one");
    EXPECT_EQ(Mask(), (Rows{"invalid argument"}));
  }
  EXPECT_EQ(cache_->Init(backend_, F32Options(1, 4)).code(), StatusCode::kInvalidArgument);
}

TEST_F(CausalCacheTest, CallsTakeBracedListsConstDataAndBuiltBatches) {
  Open(F32Options(2, 8));
  Cache& cache = *cache_;
  BatchBuilder batch;
  batch.Add(SequenceId{1}, 0, 2).Add(SequenceId{0}, 0);
  ASSERT_TRUE(cache.StartForward(batch.view(), ForwardMode::kCompute).ok());
  ASSERT_TRUE(cache.SetCausal({0}).ok());
  const std::vector<float> values(4 * 2 * 3, 1.0f);
  const TensorView k = TensorView::Dense(values.data(), DType::kF32, 4, 2, 3);
  ASSERT_TRUE(cache.Put(k, k).ok());
  EXPECT_EQ(cache.Visible().bidirectional[0], 1);
  EXPECT_EQ(cache.Visible().bidirectional[1], 0);
  batch.Clear();
  EXPECT_EQ(batch.view().size(), 0u);
}

TEST_F(CausalCacheTest, GetNamesTheCellOfItsFirstColumn) {
  Open(F32Options(2, 8));
  Forward({{1, 0, 1}, {1, 1, 2}});
  const auto history = cache_->Get();
  ASSERT_TRUE(history.ok()) << history.status().message();
  const HistoryRun run = cache_->Visible().histories[0].front();
  EXPECT_EQ(history->first_cell, run.cell);
  EXPECT_EQ(history->k.dims[2], run.length);
}

TEST_F(CausalCacheTest, GetInTheTiledLayoutNamesTheOption) {
  ReferenceBackend tiled(CacheConfig{.layout = KvLayout::kTiled, .cell_padding = 16});
  auto cache = MakeCausalCache();
  ASSERT_TRUE(cache->Init(tiled, F32Options(1, 4)).ok());
  ASSERT_TRUE(StartForward(*cache, {{0, 0, 1}}).ok());
  ASSERT_TRUE(PutContents(*cache, {{0, 0, 1}}, 0, kShape).ok());
  EXPECT_EQ(cache->Get().status().message(),
            "Get needs the plain layout, and the cache has the backend's tiled layout; set "
            "CacheOptions::config to CacheConfig{}");
}

TEST_F(CausalCacheTest, HistoriesOfOneRunLieSideBySide) {
  Open(F32Options(4, 16));
  (void)Forward({{0, 0, 1}, {0, 1, 2}, {1, 0, 3}, {2, 0, 4}, {2, 5, 5}, {3, 0, 6}});
  const auto histories = cache_->Visible().histories;
  ASSERT_EQ(histories.size(), 4u);
  for (const std::size_t one : {0u, 1u, 3u}) {
    ASSERT_EQ(histories[one].size(), 1u) << one;
    const HistoryRun& run = histories[one].front();
    EXPECT_EQ(run, (HistoryRun{0, 16 * static_cast<std::int32_t>(one), one == 0 ? 2 : 1}));
  }
  EXPECT_EQ(histories[1].data(), histories[0].data() + 1);
  EXPECT_EQ(histories[3].data(), histories[0].data() + 2);
  ASSERT_EQ(histories[2].size(), 2u);
  EXPECT_EQ(histories[2].back().position, 5);
}

}  // namespace
}  // namespace kvcache::causal_views_test
