// Redis servers of tests, on loopback.
//
// Thread safety: one thread at a time.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "store/redis/redis_connection.h"
#include "store/store_testing.h"

namespace kvcache::store {

inline bool HasRedisServer() {
  return std::system("command -v redis-server > /dev/null 2>&1") == 0;
}

#define KVCACHE_SKIP_WITHOUT_REDIS() \
  if (!HasRedisServer())             \
  GTEST_SKIP() << "redis-server is not installed: Debian's package redis-server has it"

// Returns a port that nobody has at the moment, whose bus port of a cluster (10,000 above) exists too.
inline int FreePort() {
  for (;;) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const bool is_bound = bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                          getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    close(listener);
    EXPECT_TRUE(is_bound);
    if (const int port = ntohs(address.sin_port); port < 55000) return port;
  }
}

class RedisServer {
 public:
  explicit RedisServer(std::vector<std::string> options = {}) : options_(std::move(options)) {
    std::filesystem::create_directories(directory_.path());
    Start();
  }
  ~RedisServer() { Kill(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  // Starts it on the same port as before, empty.
  void Start() {
    std::vector<std::string> words = {"redis-server",
                                      "--port",
                                      std::to_string(port_),
                                      "--bind",
                                      "127.0.0.1",
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--dir",
                                      directory_.path(),
                                      "--logfile",
                                      directory_.path() + "/log"};
    words.insert(words.end(), options_.begin(), options_.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = fork();
    if (process_ == 0) {
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    ASSERT_GT(process_, 0);
    for (int i = 0; i < 1000; ++i) {
      if (!Say({"PING"}).empty()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "redis-server does not answer at port " << port_;
  }
  void Kill() {
    if (process_ <= 0) return;
    Signal(SIGKILL);
    (void)waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  void Signal(int signal) const { (void)kill(process_, signal); }

  RedisAddress address() const { return {"127.0.0.1", port_}; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }

  // Sends a command, and returns the answer as text; "" without an answer.
  std::string Say(const std::vector<std::string>& words, const std::string& password = "") const {
    RedisUrl url{.address = address(), .user = "", .password = password, .database = 0};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    auto connection = RedisConnection::Open(address(), url, deadline);
    if (!connection.ok()) return "";
    std::vector<std::string_view> arguments(words.begin(), words.end());
    if (!(*connection)->Send(arguments, {}, deadline).ok()) return "";
    const auto reply = (*connection)->Receive(deadline);
    if (!reply.ok()) return "";
    if ((*reply)->type == REDIS_REPLY_INTEGER) return std::to_string((*reply)->integer);
    return std::string(TextOf(**reply));
  }

 private:
  const std::vector<std::string> options_;
  const int port_ = FreePort();
  TestDirectory directory_;
  pid_t process_ = -1;
};

// A server that serves one connection after the other as a test wants.
class LoopbackServer {
 public:
  // Serves a connection until it ends, or until `stop` is set.
  using Serve = std::function<void(int client, const std::atomic<bool>& stop)>;

  explicit LoopbackServer(Serve serve) : serve_(std::move(serve)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(listen(listener_, 5), 0);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
    thread_ = std::thread([this] {
      while (!stop_) {
        const int client = accept(listener_, nullptr, nullptr);
        if (client < 0) return;
        serve_(client, stop_);
        close(client);
      }
    });
  }
  ~LoopbackServer() {
    stop_ = true;
    (void)shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  RedisAddress address() const { return address_; }
  std::string url() const { return "redis://" + TextOf(address_); }

 private:
  const Serve serve_;
  int listener_ = -1;
  RedisAddress address_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace kvcache::store
