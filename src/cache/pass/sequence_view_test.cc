// Views of a sequence over the processor's kernels.
#include "kvcache/sequence_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/wrapper_cache.h"

namespace kvcache::sequence_view_test {
namespace {

constexpr int kHeads = 2;
constexpr int kDim = 64;
constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};

class SequenceViewTest : public ::testing::TestWithParam<DType> {
 protected:
  CacheOptions Options(int capacity) const { return {GetParam(), GetParam(), 2, capacity, 16}; }

  std::vector<float> RandomRows(int count) {
    std::vector<float> rows(static_cast<std::size_t>(kHeads) * kDim * count);
    for (float& x : rows) x = normal_(random_);
    return rows;
  }
  static TensorView View(std::vector<float>& rows, int count) {
    return TensorView::Dense(rows.data(), DType::kF32, kDim, kHeads, count);
  }

  // Evaluates positions [begin, end) and returns the attention of each query, [tokens][values].
  std::vector<std::vector<float>> Evaluate(Cache& cache, SequenceId id, Position begin,
                                           Position end) {
    std::vector<std::vector<float>> result;
    for (Position p = begin; p < end; ++p) {
      batch_.Clear();
      batch_.Add(id, p);
      EXPECT_TRUE(cache.StartForward(batch_.view(), ForwardMode::kCompute).ok());
      cache.SetLayer(0);
      std::vector<float> k = RandomRows(1);
      std::vector<float> v = RandomRows(1);
      EXPECT_TRUE(cache.Put(View(k, 1), View(v, 1)).ok());
      result.push_back(Attend(cache, cache.Visible()));
    }
    return result;
  }

  // Returns the attention of equal queries.
  std::vector<float> Attend(Cache& cache, const Visibility& visible) {
    const auto count = static_cast<int>(visible.positions.size());
    std::vector<float> q(static_cast<std::size_t>(kHeads) * kDim * count, 0.125f);
    std::vector<float> out(q.size());
    const Status status = backend_->Attention(*cache.Storage(), View(q, count), visible,
                                              {.scale = 0.125f}, View(out, count));
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  std::unique_ptr<Backend> backend_ = *MakeCpuBackend({.threads = 1});
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_;
  BatchBuilder batch_;
};

TEST_P(SequenceViewTest, AttendsAsTheTargetDoes) {
  auto cache = MakeCausalCache();
  ASSERT_TRUE(cache->Init(*backend_, Options(200)).ok());
  const auto expected = Evaluate(*cache, kFirst, 0, 90);
  SequenceView view;
  ASSERT_TRUE(view.Set(*cache, kFirst, 0, 90).ok());
  const std::vector<float> two = Attend(*cache, *view.Visible(2));
  EXPECT_EQ(std::vector<float>(two.begin(), two.begin() + kHeads * kDim), expected.back());
  EXPECT_EQ(std::vector<float>(two.begin() + kHeads * kDim, two.end()), expected.back());
  ASSERT_TRUE(view.Set(*cache, kFirst, 0, 40).ok());
  EXPECT_EQ(Attend(*cache, *view.Visible(1)), expected[39]);
}

// The cells of a ring are in another order than the positions.
TEST_P(SequenceViewTest, ShowsAWindowInOrderOfPosition) {
  for (const int window : {20, 33}) {
    auto cache = MakeCausalCache({.window = window});
    ASSERT_TRUE(cache->Init(*backend_, Options(200)).ok());
    const auto expected = Evaluate(*cache, kFirst, 0, 150);
    (void)Evaluate(*cache, kSecond, 0, 40);
    SequenceView view;
    ASSERT_TRUE(view.Set(*cache, kFirst, 150 - window, 150).ok());
    EXPECT_EQ(Attend(*cache, *view.Visible(1)), expected.back());
    ASSERT_TRUE(view.Set(*cache, kFirst, 151 - window, 150).ok());
    Position next = 151 - window;
    for (const HistoryRun& run : view.runs()) {
      EXPECT_EQ(run.position, next);
      next += run.length;
    }
    EXPECT_EQ(next, 150);
    const Status gone = view.Set(*cache, kFirst, 100, 150);
    EXPECT_EQ(gone.code(), StatusCode::kUnsupported);
    EXPECT_EQ(gone.message(),
              "a view of positions [100, 150) of sequence 0, which has no token at 100");
    EXPECT_TRUE(view.runs().empty());
  }
}

TEST_P(SequenceViewTest, AWrapperShowsTheSelectedCache) {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache({.window = 8}));
  options.caches.push_back(MakeCausalCache());
  auto cache = MakeWrapperCache(std::move(options));
  ASSERT_TRUE(cache->Init(*backend_, Options(64)).ok());
  cache->Wrapper()->SetLayerType(1);
  const auto expected = Evaluate(*cache, kFirst, 0, 30);
  SequenceView view;
  ASSERT_TRUE(view.Set(*cache, kFirst, 0, 30).ok());
  EXPECT_EQ(Attend(*cache, *view.Visible(1)), expected.back());
  cache->Wrapper()->SetLayerType(0);
  EXPECT_EQ(view.Set(*cache, kFirst, 0, 30).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(view.Set(*cache, kFirst, 23, 30).ok());
}

TEST_P(SequenceViewTest, SaysWhatIsWrong) {
  auto cache = MakeCausalCache();
  SequenceView view;
  EXPECT_EQ(view.Set(*cache, kFirst, 0, 1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(cache->Init(*backend_, Options(64)).ok());
  (void)Evaluate(*cache, kFirst, 0, 3);
  EXPECT_EQ(view.Set(*cache, kFirst, 1, 4).message(),
            "a view of positions [1, 4) of sequence 0, which has 3 tokens");
  EXPECT_EQ(view.Set(*cache, SequenceId{2}, 0, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(view.Set(*cache, kFirst, 2, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(view.Visible(0).status().code(), StatusCode::kInvalidArgument);
  auto encoder = MakeEncoderCache({.max_tokens = 4});
  ASSERT_TRUE(encoder->Init(*backend_, Options(64)).ok());
  EXPECT_EQ(view.Set(*encoder, kFirst, 0, 0).code(), StatusCode::kUnsupported);
}

INSTANTIATE_TEST_SUITE_P(Types, SequenceViewTest,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0),
                         [](const auto& test) { return std::string(InfoOf(test.param).name); });

}  // namespace
}  // namespace kvcache::sequence_view_test
