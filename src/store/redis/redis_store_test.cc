// The store in Redis: a server that is killed, paused, slow, full, locked or wrong costs a miss, never later
// than the time-out.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "store/content_hash.h"
#include "store/redis/redis_nodes.h"
#include "store/redis/redis_testing.h"

namespace kvcache::store::redis_store_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Long, so that a busy machine does not take as much by itself. A call that waits once takes less than
// twice as long.
constexpr int kTimeoutMs = 1000;

std::unique_ptr<Store> Open(const std::string& url, RedisStoreOptions options = {}) {
  options.url = url;
  options.timeout_ms = kTimeoutMs;
  options.max_pause_ms = 400;
  auto store = OpenRedisStore(options);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return std::move(*store);
}

std::string KeyOf(const ObjectId& id) {
  return "kvcache:" + HexText(id.fingerprint) + ":" + HexText(id.key);
}

template <class Function>
milliseconds TimeOf(const Function& function) {
  const auto start = Clock::now();
  function();
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
}

// Returns whether the store has the object again within three seconds.
bool Recovers(Store& store, std::uint64_t number, std::size_t size) {
  for (int i = 0; i < 300; ++i) {
    const bool is_put = store.Put(TestId(number), TestPayload(number, size)).ok();
    const auto got = ReadObject(store, TestId(number));
    if (is_put && got.ok() && *got == TestPayload(number, size)) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

TEST(RedisStoreTest, KeepsObjects) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server;
  const auto store = Open(server.url());
  const std::size_t sizes[] = {0, 1, 100, 65536, 9'000'001};
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    EXPECT_EQ(ReadObject(*store, TestId(i)).status().code(), StatusCode::kNotFound);
    EXPECT_FALSE(*store->Contains(TestId(i)));
    ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, sizes[i])).ok());
    EXPECT_EQ(*ReadObject(*store, TestId(i)), TestPayload(i, sizes[i]));
    EXPECT_TRUE(*store->Contains(TestId(i)));
    EXPECT_FALSE(*store->Contains(TestId(i, 1))) << "another fingerprint is another namespace";
  }
  const auto all = store->List();
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->size(), std::size(sizes));
  const auto stats = store->Stats();
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->objects, 5);
  EXPECT_EQ(stats->payload_bytes, 0 + 1 + 100 + 65536 + 9'000'001);
  EXPECT_GT(stats->held_bytes, stats->payload_bytes);
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(7, 10)).ok());
  EXPECT_EQ(*ReadObject(*store, TestId(1)), TestPayload(7, 10));
  ASSERT_TRUE(store->Remove(TestId(1)).ok());
  ASSERT_TRUE(store->Remove(TestId(1)).ok());
  EXPECT_EQ(ReadObject(*store, TestId(1)).status().code(), StatusCode::kNotFound);
}

TEST(RedisStoreTest, ReadsSeveralInOrder) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server;
  const auto store = Open(server.url());
  std::vector<ObjectId> ids;
  for (std::uint64_t i = 0; i < 20; ++i) {
    ids.push_back(TestId(i));
    if (i != 15) {
      ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, 1000 * i)).ok());
    }
  }
  std::size_t next = 0;
  const Status status = store->GetEach(
      ids, [&](std::size_t index, std::span<const std::byte> payload, StoreTier tier) {
        EXPECT_EQ(index, next++);
        EXPECT_EQ(tier, StoreTier::kRemote);
        const auto expected = TestPayload(index, 1000 * index);
        EXPECT_TRUE(std::equal(payload.begin(), payload.end(), expected.begin(), expected.end()));
        return Status::Ok();
      });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(next, 15U);
  EXPECT_EQ(*ReadObject(*store, TestId(19)), TestPayload(19, 19000)) << "answers do not mix";
}

TEST(RedisStoreTest, TwoProcessesShareObjects) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server;
  const auto one = Open(server.url());
  const auto other = Open(server.url());
  ASSERT_TRUE(one->Put(TestId(1), TestPayload(1, 5000)).ok());
  EXPECT_EQ(*ReadObject(*other, TestId(1)), TestPayload(1, 5000));
  EXPECT_FALSE(*Open(server.url() + "/3")->Contains(TestId(1))) << "another database";
}

TEST(RedisStoreTest, AnObjectLivesAsLongAsItIsUsed) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server;
  const auto store = Open(server.url(), {.url = {}, .ttl_s = 100});
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 10)).ok());
  const std::string key = KeyOf(TestId(1));
  EXPECT_GT(std::stoi(server.Say({"TTL", key})), 90);
  EXPECT_EQ(server.Say({"EXPIRE", key, "50"}), "1");
  const ObjectId ids[] = {TestId(2), TestId(1)};
  store->Touch(ids);
  EXPECT_GT(std::stoi(server.Say({"TTL", key})), 90);
  const auto forever = Open(server.url(), {.url = {}, .ttl_s = 0});
  ASSERT_TRUE(forever->Put(TestId(1), TestPayload(1, 10)).ok());
  EXPECT_EQ(server.Say({"TTL", key}), "-1");
}

TEST(RedisStoreTest, DamagedValuesAreMissesAndRemoved) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server;
  const auto store = Open(server.url());
  const std::string key = KeyOf(TestId(1));
  const std::vector<std::vector<std::string>> damages = {
      {"SET", key, "short"},         {"SET", key, ""},
      {"SETRANGE", key, "200", "X"}, {"SETRANGE", key, "20", "X"},
      {"APPEND", key, "X"},          {"COPY", KeyOf(TestId(2)), key, "REPLACE"},
  };
  for (const auto& damage : damages) {
    ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 500)).ok());
    ASSERT_TRUE(store->Put(TestId(2), TestPayload(2, 500)).ok());
    ASSERT_NE(server.Say(damage), "");
    EXPECT_EQ(ReadObject(*store, TestId(1)).status().code(), StatusCode::kCorrupt) << damage[0];
    EXPECT_EQ(ReadObject(*store, TestId(1)).status().code(), StatusCode::kNotFound);
  }
  // A value of another type is an error of the server, and no crash.
  ASSERT_EQ(server.Say({"LPUSH", key, "x"}), "1");
  EXPECT_EQ(ReadObject(*store, TestId(1)).status().code(), StatusCode::kIo);
}

TEST(RedisStoreTest, AKilledServerIsAMissUntilItIsBack) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  RedisServer server;
  const auto store = Open(server.url());
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 5000)).ok());
  server.Kill();
  for (int i = 0; i < 20; ++i) {
    Status status;
    EXPECT_LT(TimeOf([&] { status = ReadObject(*store, TestId(1)).status(); }),
              milliseconds(2 * kTimeoutMs));
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find(TextOf(server.address())), std::string::npos)
        << status.message();
  }
  EXPECT_FALSE(store->Put(TestId(2), TestPayload(2, 10)).ok());
  EXPECT_FALSE(store->Contains(TestId(1)).ok());
  server.Start();
  EXPECT_TRUE(Recovers(*store, 3, 5000));
}

TEST(RedisStoreTest, APausedServerCostsOneTimeOut) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server;
  const auto store = Open(server.url());
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 5000)).ok());
  server.Signal(SIGSTOP);
  Status status;
  const milliseconds first = TimeOf([&] { status = ReadObject(*store, TestId(1)).status(); });
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_GE(first, milliseconds(kTimeoutMs - 10));
  EXPECT_LT(first, milliseconds(2 * kTimeoutMs));
  // A value that does not fit into the buffers of sockets.
  const auto large = TestPayload(2, 30'000'000);
  std::this_thread::sleep_for(milliseconds(450));
  EXPECT_LT(TimeOf([&] { status = store->Put(TestId(2), large); }), milliseconds(2 * kTimeoutMs));
  EXPECT_EQ(status.code(), StatusCode::kIo);
  // The next calls do not wait.
  EXPECT_LT(TimeOf([&] {
              for (int i = 0; i < 10; ++i) {
                EXPECT_FALSE(store->Contains(TestId(1)).ok());
              }
            }),
            milliseconds(kTimeoutMs));
  server.Signal(SIGCONT);
  EXPECT_TRUE(Recovers(*store, 3, 5000));
}

// Says these words, whatever it is asked, and then a letter after each pause, without end.
LoopbackServer::Serve Says(const std::string& words, milliseconds pause) {
  return [=](int client, const std::atomic<bool>& stop) {
    (void)send(client, words.data(), words.size(), MSG_NOSIGNAL);
    while (!stop && send(client, "x", 1, MSG_NOSIGNAL) == 1) std::this_thread::sleep_for(pause);
  };
}

TEST(RedisStoreTest, ASlowAnswerEndsAtTheTimeOut) {
  const LoopbackServer server(Says("$100000\r\n", milliseconds(5)));
  const auto store = Open(server.url());
  Status status;
  const milliseconds time = TimeOf([&] { status = ReadObject(*store, TestId(1)).status(); });
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("no answer in time"), std::string::npos) << status.message();
  EXPECT_LT(time, milliseconds(2 * kTimeoutMs));
}

TEST(RedisStoreTest, AnotherProtocolIsAnError) {
  const LoopbackServer server(Says("HTTP/1.1 400 Bad Request\r\n\r\n", milliseconds(5)));
  const auto store = Open(server.url());
  EXPECT_EQ(ReadObject(*store, TestId(1)).status().code(), StatusCode::kCorrupt);
}

TEST(RedisStoreTest, AFullServerRefusesAndIsUsedAgain) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server;
  const auto store = Open(server.url());
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 5000)).ok());
  ASSERT_EQ(server.Say({"CONFIG", "SET", "maxmemory", "1mb"}), "OK");
  const Status full = store->Put(TestId(2), TestPayload(2, 4'000'000));
  EXPECT_EQ(full.code(), StatusCode::kCacheFull);
  EXPECT_NE(full.message().find("OOM"), std::string::npos) << full.message();
  EXPECT_EQ(*ReadObject(*store, TestId(1)), TestPayload(1, 5000)) << "reads continue";
  ASSERT_EQ(server.Say({"CONFIG", "SET", "maxmemory", "0"}), "OK");
  EXPECT_TRUE(store->Put(TestId(2), TestPayload(2, 4'000'000)).ok());
}

TEST(RedisStoreTest, LogsInAndHidesThePassword) {
  KVCACHE_SKIP_WITHOUT_REDIS();
  const RedisServer server({"--requirepass", "se:cr@t/1"});
  const std::string at = "@" + TextOf(server.address());
  const auto message = [](const std::string& url) {
    return ReadObject(*Open(url), TestId(1)).status().message();
  };
  EXPECT_NE(message(server.url()).find("NOAUTH"), std::string::npos);
  const std::string wrong = message("redis://:hunter2" + at);
  EXPECT_NE(wrong.find("WRONGPASS"), std::string::npos) << wrong;
  EXPECT_EQ(wrong.find("hunter2"), std::string::npos);
  const auto store = Open("redis://:se%3Acr%40t%2f1" + at);
  EXPECT_TRUE(store->Put(TestId(1), TestPayload(1, 100)).ok());
  ASSERT_EQ(server.Say({"ACL", "SETUSER", "reader", "on", ">pw", "~kvcache:*", "+get", "+exists"},
                       "se:cr@t/1"),
            "OK");
  const auto reader = Open("redis://reader:pw" + at);
  EXPECT_EQ(*ReadObject(*reader, TestId(1)), TestPayload(1, 100));
  const Status refused = reader->Put(TestId(2), TestPayload(2, 100));
  EXPECT_NE(refused.message().find("NOPERM"), std::string::npos) << refused.message();
}

TEST(RedisUrlTest, ReadsItsParts) {
  const auto url = ParseRedisUrl("redis://me:p%40ss@cache.example:7000/2");
  ASSERT_TRUE(url.ok()) << url.status().message();
  EXPECT_EQ(url->user, "me");
  EXPECT_EQ(url->password, "p@ss");
  EXPECT_EQ(url->address, (RedisAddress{"cache.example", 7000}));
  EXPECT_EQ(url->database, 2);
  EXPECT_EQ(url->Name(), "redis://cache.example:7000/2");
  EXPECT_EQ(ParseRedisUrl("redis://h")->address, (RedisAddress{"h", 6379}));
  EXPECT_EQ(ParseRedisUrl("redis://[::1]:1/")->address, (RedisAddress{"::1", 1}));
  EXPECT_EQ(ParseRedisUrl("redis://:pw@h")->password, "pw");
  EXPECT_EQ(ParseRedisAddress("::1:7001")->host, "::1");
  for (const char* const wrong :
       {"redis://", "http://h", "h:1", "redis://h:x", "redis://h:70000", "redis://h/x",
        "redis://user@h", "redis://:p%4@h", "redis://[::1", "rediss://h", "redis://:80",
        "redis://a b", "redis://a\nb", "redis://[::1\x1b]:7", "redis://h\xc3\xa9"}) {
    EXPECT_EQ(ParseRedisUrl(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace kvcache::store::redis_store_test
