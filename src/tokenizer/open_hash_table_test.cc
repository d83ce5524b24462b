#include "tokenizer/open_hash_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kvcache::open_hash_table_test {
namespace {

struct Slot {
  int key = -1;
  int value = 0;
  bool IsFree() const { return key < 0; }
};

TEST(OpenHashTableTest, MatchesAMap) {
  std::mt19937 random(1);
  // Hashes of few values and hashes beyond the table: probes collide and wrap around.
  for (const std::uint64_t hashes : {std::uint64_t{1}, std::uint64_t{5}, ~std::uint64_t{0}}) {
    constexpr int kKeys = 200;
    OpenHashTable<Slot> table(kKeys);
    std::map<int, int> map;
    const auto find = [&](int key) -> Slot& {
      const std::uint64_t hash = ~(static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15 % hashes);
      return table.Find(hash, [key](const Slot& slot) { return slot.key == key; });
    };
    for (int i = 0; i < kKeys; ++i) {
      const int key = static_cast<int>(random() % 500);
      find(key) = {key, i};
      map[key] = i;
    }
    for (int key = 0; key < 500; ++key) {
      const auto expected = map.find(key);
      const Slot& found = find(key);
      ASSERT_EQ(found.IsFree(), expected == map.end()) << key;
      EXPECT_EQ(found.value, expected == map.end() ? 0 : expected->second) << key;
    }
  }
}

TEST(OpenHashTableTest, EmptyTableHasFreeSlots) {
  const OpenHashTable<Slot> table(0);
  EXPECT_TRUE(table.Find(7, [](const Slot&) { return true; }).IsFree());
  EXPECT_FALSE(table.slots().empty());
}

}  // namespace
}  // namespace kvcache::open_hash_table_test
