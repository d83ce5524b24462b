#include "embedding/pooled_states.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvcache::pooled_states_test {
namespace {

using Values = std::vector<float>;

TEST(PooledStates, KeepWhatTheirPoolingNeeds) {
  const Values first = {1, 2, 3, 4};  // two tokens of two values
  const Values second = {8, 9};
  const auto pooled = [&](Pooling pooling) {
    PooledStates states(pooling);
    states.Append(first, 2);
    states.Append(second, 2);
    EXPECT_EQ(states.tokens(), 3);
    return states.Vectors();
  };
  EXPECT_EQ(pooled(Pooling::kNone), (Values{1, 2, 3, 4, 8, 9}));
  EXPECT_EQ(pooled(Pooling::kMean), (Values{4, 5}));
  EXPECT_EQ(pooled(Pooling::kCls), (Values{1, 2}));
  EXPECT_EQ(pooled(Pooling::kLast), (Values{8, 9}));
}

TEST(PooledStates, MayLackWhatTheirPoolingDoesNotNeed) {
  PooledStates cls(Pooling::kCls);
  EXPECT_TRUE(cls.NeedsFirst());
  cls.Append(Values{1, 2}, 2);
  EXPECT_FALSE(cls.NeedsFirst());
  cls.Skip(4);
  EXPECT_EQ(cls.Vectors(), (Values{1, 2}));
  EXPECT_EQ(cls.tokens(), 5);

  PooledStates last(Pooling::kLast);
  EXPECT_FALSE(last.NeedsFirst());
  EXPECT_TRUE(last.NeedsLast());
  last.Skip(4);
  last.Append(Values{3, 4}, 2);
  EXPECT_EQ(last.Vectors(), (Values{3, 4}));
  EXPECT_TRUE(PooledStates(Pooling::kMean).NeedsAll());
  EXPECT_TRUE(PooledStates(Pooling::kNone).NeedsAll());
}

// An input may begin with the sum of another one's first tokens.
TEST(PooledStates, MeansHaveTheSameBitsHoweverStatesArrive) {
  Values states;
  for (int i = 0; i < 300; ++i) states.push_back(std::sin(static_cast<float>(i)) * 1e3f);
  PooledStates whole(Pooling::kMean);
  whole.Append(states, 3);
  for (const std::size_t cut : {3u, 150u, 297u}) {
    PooledStates begun(Pooling::kMean);
    begun.Append(std::span(states).first(cut), 3);
    PooledStates copy = begun;
    copy.Append(std::span(states).subspan(cut), 3);
    EXPECT_EQ(copy.Vectors(), whole.Vectors());
  }
}

TEST(PooledStates, VectorsAreCutAndThenNormalized) {
  const Values vectors = {3, 4, 100, 0, 0, 5};
  EXPECT_EQ(FinishVectors(vectors, 3, 2, true), (Values{0.6f, 0.8f, 0, 0}));
  EXPECT_EQ(FinishVectors(vectors, 3, 2, false), (Values{3, 4, 0, 0}));
  EXPECT_EQ(FinishVectors(vectors, 3, 3, false), vectors);
}

}  // namespace
}  // namespace kvcache::pooled_states_test
