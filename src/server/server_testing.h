// A server with the model that ships, and a client that speaks HTTP through sockets, for tests.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "kvcache_engine/engine.h"
#include "server/server.h"

namespace kvcache::server {

class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit{.tv_sec = 60, .tv_usec = 0};
    (void)setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { (void)close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int descriptor() const { return socket_; }

  // Returns whether the server took all of it.
  bool Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Reads to the end of the connection, and returns how many bytes there were. Allocates nothing.
  std::size_t Discard() {
    std::size_t count = 0;
    char bytes[4096];
    for (ssize_t size = 1; size > 0; count += static_cast<std::size_t>(size)) {
      size = recv(socket_, bytes, sizeof(bytes), 0);
      if (size <= 0) break;
    }
    return count;
  }

  // Reads until the text contains `end`, or to the end of the connection.
  std::string Read(std::string_view end = "") {
    std::string text;
    char bytes[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const ssize_t size = recv(socket_, bytes, sizeof(bytes), 0);
      if (size <= 0) break;
      text.append(bytes, static_cast<std::size_t>(size));
    }
    return text;
  }

 private:
  int socket_;
};

struct HttpAnswer {
  int status = 0;
  std::string head;
  std::string body;

  Json json() const { return Json::parse(body, nullptr, false); }
};

inline std::string WithoutChunks(std::string_view body) {
  std::string text;
  while (!body.empty()) {
    const std::size_t size = std::stoul(std::string(body.substr(0, 16)), nullptr, 16);
    body.remove_prefix(body.find("\r\n") + 2);
    text += body.substr(0, size);
    body.remove_prefix(size + 2);
  }
  return text;
}

inline HttpAnswer Parse(const std::string& text) {
  HttpAnswer answer;
  const std::size_t end = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.1 ") || end == std::string::npos) return answer;
  answer.status = std::stoi(text.substr(9, 3));
  answer.head = text.substr(0, end + 2);
  answer.body = text.substr(end + 4);
  if (answer.head.find("Transfer-Encoding: chunked") != std::string::npos) {
    answer.body = WithoutChunks(answer.body);
  }
  return answer;
}

// The JSON of each event.
inline std::vector<Json> Events(const std::string& body) {
  std::vector<Json> events;
  for (std::size_t at = body.find("data: "); at != body.npos; at = body.find("data: ", at + 1)) {
    const std::string line = body.substr(at + 6, body.find('\n', at) - at - 6);
    if (line != "[DONE]") events.push_back(Json::parse(line, nullptr, false));
  }
  return events;
}

// The names and the JSON of each event.
inline std::vector<std::pair<std::string, Json>> NamedEvents(const std::string& body) {
  std::vector<std::pair<std::string, Json>> events;
  std::size_t at = 0;
  for (std::size_t end = body.find("\n\n"); end != body.npos; end = body.find("\n\n", at)) {
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    if (event.starts_with(':')) continue;
    const std::size_t line = event.find("\ndata: ");
    EXPECT_TRUE(event.starts_with("event: ") && line != event.npos) << event;
    if (line == event.npos) continue;
    events.emplace_back(event.substr(7, line - 7),
                        Json::parse(event.substr(line + 7), nullptr, false));
  }
  return events;
}

class ServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine_ = std::move(Engine::Open(std::string(KVCACHE_SOURCE_DIR) + "/models/story.gguf",
                                     {.threads = 2, .context = 512, .max_sequences = 4}))
                  .value()
                  .release();
  }
  static void TearDownTestSuite() { delete engine_; }

  void SetUp() override { Start({}); }
  void TearDown() override { server_.reset(); }

  void Start(const ServerOptions& options) {
    server_.reset();
    auto server = Server::Start(*engine_, {.name = "story"}, options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }

  HttpAnswer Raw(const std::string& bytes) const {
    Client client(server_->port());
    (void)client.Write(bytes);
    return Parse(client.Read());
  }
  HttpAnswer Get(const std::string& path, const std::string& method = "GET") const {
    return Raw(
        StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  }
  HttpAnswer Post(const std::string& path, const std::string& body) const {
    return Raw(StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                      "Content-Length: ", body.size(), "\r\n\r\n", body));
  }
  HttpAnswer Post(const std::string& path, const Json& body) const {
    return Post(path, body.dump());
  }

  std::string ChatText(Json body) const {
    const HttpAnswer answer = Post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (answer.status != 200) return {};
    if (!body.value("stream", false)) {
      return answer.json()["choices"][0]["message"]["content"].get<std::string>();
    }
    std::string text;
    for (const Json& event : Events(answer.body)) {
      if (event["choices"].empty()) continue;
      text += event["choices"][0]["delta"].value("content", "");
    }
    return text;
  }

  bool BecomesIdle() const {
    for (int i = 0; i < 400; ++i) {
      if (server_->host().counters().running == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  static Json Chat(const std::string& text, int max = 24) {
    return {{"model", "story"},
            {"messages", Json::array({{{"role", "user"}, {"content", text}}})},
            {"max_tokens", max},
            {"temperature", 0}};
  }

  static inline Engine* engine_ = nullptr;
  std::unique_ptr<Server> server_;
};
}  // namespace kvcache::server
