#include "cache/cells/free_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace kvcache::free_set_test {
namespace {

TEST(FreeSetTest, StartsFull) {
  // Sizes around every boundary of a level.
  for (const std::int32_t size : {1, 2, 63, 64, 65, 4095, 4096, 4097, 262143, 262144, 262145}) {
    FreeSet set;
    set.Reset(size);
    EXPECT_EQ(set.count(), size);
    EXPECT_TRUE(set.Contains(size - 1));
    EXPECT_EQ(set.NextFrom(0), 0);
    EXPECT_EQ(set.NextFrom(size - 1), size - 1);
    EXPECT_EQ(set.NextFrom(size), FreeSet::kNone) << size;
  }
}

TEST(FreeSetTest, FindsTheOnlyMemberFromAnywhereBefore) {
  constexpr std::int32_t kSize = 300000;
  FreeSet set;
  set.Reset(kSize);
  for (std::int32_t cell = 0; cell < kSize; ++cell) set.Erase(cell);
  EXPECT_EQ(set.count(), 0);
  EXPECT_EQ(set.NextFrom(0), FreeSet::kNone);
  for (const std::int32_t member : {0, 63, 64, 4095, 4096, 262143, 262144, kSize - 1}) {
    set.Insert(member);
    for (const std::int32_t from : {0, member / 2, member - 1, member}) {
      if (from >= 0) {
        EXPECT_EQ(set.NextFrom(from), member) << from;
      }
    }
    EXPECT_EQ(set.NextFrom(member + 1), FreeSet::kNone);
    set.Erase(member);
  }
}

TEST(FreeSetTest, AgreesWithAnOrderedSet) {
  std::mt19937 random(7);
  for (const std::int32_t size : {5, 64, 130, 5000}) {
    FreeSet set;
    set.Reset(size);
    std::set<std::int32_t> expected;
    for (std::int32_t cell = 0; cell < size; ++cell) expected.insert(cell);
    for (int step = 0; step < 20000; ++step) {
      // Long phases of mostly erasing, then mostly inserting, produce empty words.
      const bool erase = random() % 8 != 0 ? (step / 4000) % 2 == 0 : random() % 2 == 0;
      const auto cell = static_cast<std::int32_t>(random() % size);
      ASSERT_EQ(set.Contains(cell), expected.count(cell) == 1);
      if (erase && set.Contains(cell)) {
        set.Erase(cell);
        expected.erase(cell);
      } else if (!erase && !set.Contains(cell)) {
        set.Insert(cell);
        expected.insert(cell);
      }
      ASSERT_EQ(set.count(), static_cast<std::int32_t>(expected.size()));
      const auto from = static_cast<std::int32_t>(random() % (size + 1));
      const auto next = expected.lower_bound(from);
      ASSERT_EQ(set.NextFrom(from), next == expected.end() ? FreeSet::kNone : *next);
    }
  }
}

}  // namespace
}  // namespace kvcache::free_set_test
