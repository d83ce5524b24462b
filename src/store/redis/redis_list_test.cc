// The list of a server's objects has an end, also if the server gives none.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/content_hash.h"
#include "store/redis/redis_store.h"
#include "store/redis/redis_testing.h"

namespace kvcache::store::redis_list_test {
namespace {

using Words = std::vector<std::string>;

// Answers each command as `answer` does.
LoopbackServer::Serve Answers(std::function<std::string(const Words&)> answer) {
  return [answer = std::move(answer)](int client, const std::atomic<bool>& stop) {
    const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(),
                                                                      redisReaderFree);
    char received[4096];
    while (!stop) {
      pollfd waits{.fd = client, .events = POLLIN, .revents = 0};
      if (poll(&waits, 1, 10) == 0) continue;
      const ssize_t count = recv(client, received, sizeof(received), 0);
      if (count <= 0) return;
      (void)redisReaderFeed(reader.get(), received, static_cast<std::size_t>(count));
      std::string answers;
      for (void* command = nullptr;
           redisReaderGetReply(reader.get(), &command) == REDIS_OK && command != nullptr;) {
        const RedisReply owner(static_cast<redisReply*>(command));
        Words words;
        for (std::size_t i = 0; i < owner->elements; ++i) {
          words.emplace_back(TextOf(*owner->element[i]));
        }
        answers += answer(words);
      }
      (void)send(client, answers.data(), answers.size(), MSG_NOSIGNAL);
    }
  };
}

// A server whose SCAN gives another cursor each time, with so many keys. It ends after kEnd rounds, so that a
// list without limits does too.
class EndlessScan {
 public:
  static constexpr int kEnd = 2000;

  explicit EndlessScan(int keys) : keys_(keys) {}

  int rounds() const { return rounds_; }
  std::string url() const { return server_.url(); }
  std::string name() const { return TextOf(server_.address()); }

 private:
  static std::string Bulk(const std::string& text) {
    return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  }
  std::string Answer(const Words& words) {
    if (words[0] == "STRLEN") return ":500\r\n";
    if (words[0] == "INFO") return Bulk("# Memory\r\nused_memory:12345\r\nmaxmemory:99999\r\n");
    if (words[0] != "SCAN") return ":0\r\n";
    const int round = ++rounds_;
    std::string answer = "*2\r\n" + Bulk(std::to_string(round < kEnd ? round : 0)) + "*" +
                         std::to_string(keys_) + "\r\n";
    for (int i = 0; i < keys_; ++i) {
      const ObjectId id = TestId(static_cast<std::uint64_t>(round * keys_ + i));
      answer += Bulk("kvcache:" + HexText(id.fingerprint) + ":" + HexText(id.key));
    }
    return answer;
  }

  const int keys_;
  std::atomic<int> rounds_{0};
  LoopbackServer server_{Answers([this](const Words& words) { return Answer(words); })};
};

Result<std::vector<StoredObject>> List(const EndlessScan& server, const RedisListLimits& limits) {
  auto store = OpenRedisStoreOver({.url = server.url()}, &RedisConnection::Open, limits);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return (*store)->List();
}

TEST(RedisListTest, EndsAfterSoManyRounds) {
  const EndlessScan server(0);
  const Status status = List(server, {.rounds = 50}).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "redis: " + server.name() +
                                  ": SCAN does not end after 50 answers; must end with 50 at most");
  EXPECT_EQ(server.rounds(), 50);
}

TEST(RedisListTest, EndsAfterSoManyObjects) {
  const EndlessScan server(10);
  const Status status = List(server, {.objects = 100}).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(),
            "redis: " + server.name() +
                ": SCAN does not end after 110 objects; must end with 100 at most");
  EXPECT_EQ(server.rounds(), 11);
}

TEST(RedisListTest, HasAllThatAreWithinTheLimits) {
  const EndlessScan server(1);
  const auto all = List(server, {.rounds = EndlessScan::kEnd, .objects = EndlessScan::kEnd});
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->size(), static_cast<std::size_t>(EndlessScan::kEnd));
}

// A server asks for it every few seconds.
TEST(RedisListTest, UsageNeedsNoList) {
  const EndlessScan server(10);
  const auto store = OpenRedisStore({.url = server.url()});
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto usage = (*store)->Usage();
  ASSERT_TRUE(usage.ok()) << usage.status().message();
  EXPECT_EQ(usage->held_bytes, 12345);
  EXPECT_EQ(usage->budget_bytes, 99999);
  EXPECT_EQ(server.rounds(), 0);
}

}  // namespace
}  // namespace kvcache::store::redis_list_test
