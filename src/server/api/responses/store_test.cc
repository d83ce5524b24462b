#include "server/api/responses/store.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcache::server::store_test {
namespace {

StoredResponse Stored(const std::string& id, std::size_t bytes = 0) {
  const Json item = {{"id", "item_" + id}, {"text", std::string(bytes, 'x')}};
  return {.response = {{"id", id}, {"output", Json::array({item})}},
          .items = Json::array({Json({{"content", id}})})};
}

TEST(ResponseStoreTest, KeepsWhatWasUsedLast) {
  ResponseStore store({.count = 3});
  for (const char* id : {"a", "b", "c"}) store.Put(Stored(id));
  EXPECT_EQ(store.Get("a")->items, Stored("a").items);
  EXPECT_EQ((*store.GetItem("item_b"))["id"], "item_b");
  store.Put(Stored("d"));
  EXPECT_FALSE(store.Get("c"));
  EXPECT_FALSE(store.GetItem("item_c"));
  for (const char* id : {"a", "b", "d"}) EXPECT_EQ(store.Get(id)->response, Stored(id).response);
  EXPECT_EQ(store.count(), 3u);
}

TEST(ResponseStoreTest, ItsBytesAreBounded) {
  constexpr std::size_t kMax = 10000;
  ResponseStore store({.count = 100, .bytes = kMax});
  for (int i = 0; i < 20; ++i) {
    store.Put(Stored(std::to_string(i), 1500));
    EXPECT_LE(store.bytes(), kMax);
  }
  EXPECT_TRUE(store.Get("19"));
  EXPECT_FALSE(store.Get("0"));
  const std::size_t count = store.count();
  EXPECT_GE(count, 3u);
  store.Put(Stored("huge", kMax));
  EXPECT_FALSE(store.Get("huge"));
  EXPECT_EQ(store.count(), count) << "others stay";
}

TEST(ResponseStoreTest, RemovesAndReplaces) {
  ResponseStore store;
  store.Put(Stored("a", 100));
  store.Put(Stored("a"));
  EXPECT_EQ(store.count(), 1u);
  EXPECT_EQ(store.Get("a")->response, Stored("a").response);
  EXPECT_TRUE(store.Remove("a"));
  EXPECT_FALSE(store.Remove("a"));
  EXPECT_FALSE(store.GetItem("item_a"));
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace kvcache::server::store_test
