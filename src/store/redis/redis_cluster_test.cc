// The store in a Redis cluster of three nodes: redirections, slots that move, a node that is down.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "store/content_hash.h"
#include "store/redis/redis_nodes.h"
#include "store/redis/redis_testing.h"

namespace kvcache::store::redis_cluster_test {
namespace {

using std::chrono::milliseconds;

std::string KeyOf(const ObjectId& id) {
  return "kvcache:" + HexText(id.fingerprint) + ":" + HexText(id.key);
}

class RedisClusterTest : public ::testing::Test {
 protected:
  static constexpr int kNodes = 3;
  static constexpr std::uint64_t kObjects = 40;

  void SetUp() override {
    KVCACHE_SKIP_WITHOUT_REDIS();
    for (int i = 0; i < kNodes; ++i) {
      nodes_.push_back(std::make_unique<RedisServer>(
          std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
                                   "--cluster-require-full-coverage", "no"}));
    }
    for (int i = 0; i < kNodes; ++i) {
      const int first = 16384 * i / kNodes;
      const int last = 16384 * (i + 1) / kNodes - 1;
      EXPECT_EQ(
          nodes_[i]->Say({"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)}),
          "OK");
      EXPECT_EQ(nodes_[i]->Say({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)}), "OK");
    }
    for (int i = 1; i < kNodes; ++i) {
      EXPECT_EQ(nodes_[0]->Say(
                    {"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[i]->address().port)}),
                "OK");
    }
    for (const auto& node : nodes_) {
      for (int i = 0; i < 1000 && !KnowsAll(*node); ++i) {
        std::this_thread::sleep_for(milliseconds(20));
      }
      ASSERT_TRUE(KnowsAll(*node));
    }
    store_ = Open();
  }
  static bool KnowsAll(const RedisServer& node) {
    const std::string info = node.Say({"CLUSTER", "INFO"});
    return info.find("cluster_state:ok") != std::string::npos &&
           info.find("cluster_slots_assigned:16384") != std::string::npos &&
           info.find("cluster_known_nodes:3") != std::string::npos;
  }
  std::unique_ptr<Store> Open() const {
    return std::move(
        *OpenRedisStore({.url = nodes_[0]->url(), .timeout_ms = 500, .max_pause_ms = 300}));
  }
  static int NodeOf(std::uint64_t object) {
    const int slot = RedisSlot(KeyOf(TestId(object)));
    int node = 0;
    while (slot > 16384 * (node + 1) / kNodes - 1) ++node;
    return node;
  }
  void PutAll(Store& store) {
    for (std::uint64_t i = 0; i < kObjects; ++i) {
      const Status status = store.Put(TestId(i), TestPayload(i, 1000 + i));
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  static void ExpectAll(Store& store) {
    std::vector<ObjectId> ids;
    for (std::uint64_t i = 0; i < kObjects; ++i) {
      ids.push_back(TestId(i));
      EXPECT_EQ(*ReadObject(store, TestId(i)), TestPayload(i, 1000 + i));
    }
    std::size_t next = 0;
    const Status status =
        store.GetEach(ids, [&](std::size_t index, std::span<const std::byte> payload, StoreTier) {
          EXPECT_EQ(index, next++);
          const auto expected = TestPayload(index, 1000 + index);
          EXPECT_TRUE(std::equal(payload.begin(), payload.end(), expected.begin(), expected.end()));
          return Status::Ok();
        });
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(next, ids.size());
  }

  std::vector<std::unique_ptr<RedisServer>> nodes_;
  std::unique_ptr<Store> store_;
};

TEST(RedisSlotTest, IsThatOfTheSpecification) {
  EXPECT_EQ(RedisSlot("123456789"), 0x31C3 % 16384);
  EXPECT_EQ(RedisSlot("foo{hash_tag}"), RedisSlot("hash_tag"));
  EXPECT_EQ(RedisSlot("foo{}{bar}"), RedisSlot("foo{}{bar}"));
  EXPECT_NE(RedisSlot("foo{}{bar}"), RedisSlot("bar"));
}

TEST_F(RedisClusterTest, FindsObjectsOnAllNodes) {
  PutAll(*store_);
  ExpectAll(*store_);
  ExpectAll(*Open());
  std::set<int> used;
  for (std::uint64_t i = 0; i < kObjects; ++i) used.insert(NodeOf(i));
  EXPECT_EQ(used.size(), 3U);
  const auto all = store_->List();
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->size(), kObjects);
  ASSERT_TRUE(store_->Remove(TestId(3)).ok());
  EXPECT_FALSE(*store_->Contains(TestId(3)));
}

TEST_F(RedisClusterTest, FollowsSlotsThatMove) {
  PutAll(*store_);
  const std::uint64_t object = 5;
  const std::string key = KeyOf(TestId(object));
  const std::string slot = std::to_string(RedisSlot(key));
  const RedisServer& from = *nodes_[static_cast<std::size_t>(NodeOf(object))];
  const RedisServer& to = *nodes_[static_cast<std::size_t>((NodeOf(object) + 1) % kNodes)];
  const std::string from_id = from.Say({"CLUSTER", "MYID"});
  const std::string to_id = to.Say({"CLUSTER", "MYID"});
  ASSERT_EQ(to.Say({"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id}), "OK");
  ASSERT_EQ(from.Say({"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id}), "OK");
  ExpectAll(*store_);  // the object is still there
  ASSERT_EQ(from.Say({"MIGRATE", "127.0.0.1", std::to_string(to.address().port), key, "0", "5000"}),
            "OK");
  ExpectAll(*store_);  // the old node says ASK
  ASSERT_EQ(to.Say({"CLUSTER", "SETSLOT", slot, "NODE", to_id}), "OK");
  ASSERT_EQ(from.Say({"CLUSTER", "SETSLOT", slot, "NODE", to_id}), "OK");
  ExpectAll(*store_);  // the old node says MOVED
  ExpectAll(*Open());
  ASSERT_TRUE(store_->Put(TestId(object), TestPayload(object, 1000 + object)).ok());
  ExpectAll(*store_);
}

TEST_F(RedisClusterTest, ANodeThatIsDownCostsItsObjects) {
  PutAll(*store_);
  ExpectAll(*store_);
  // Also the node that the URL names.
  for (const int down : {2, 0}) {
    nodes_[static_cast<std::size_t>(down)]->Kill();
    for (std::uint64_t i = 0; i < kObjects; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const auto read = ReadObject(*store_, TestId(i));
      EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(1000));
      if (NodeOf(i) == down) {
        EXPECT_FALSE(read.ok());
      } else if (NodeOf(i) == 1) {
        ASSERT_TRUE(read.ok()) << read.status().message();
        EXPECT_EQ(*read, TestPayload(i, 1000 + i));
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::store::redis_cluster_test
