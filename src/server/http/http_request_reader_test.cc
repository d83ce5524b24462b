#include "server/http/http_request_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::server::http_request_reader_test {
namespace {

using Outcome = HttpRequestReader::Outcome;

// What a reader makes of bytes that arrive in pieces of `size`.
std::vector<std::string> ReadAll(std::string_view bytes, std::size_t size) {
  HttpRequestReader reader(200, 100);
  std::vector<std::string> found;
  std::string inbox;
  while (!bytes.empty()) {
    inbox += bytes.substr(0, size);
    bytes.remove_prefix(std::min(size, bytes.size()));
    for (Outcome outcome; (outcome = reader.Read(inbox)) != Outcome::kMore;) {
      if (outcome == Outcome::kContinue) found.emplace_back("continue");
      if (outcome == Outcome::kRequest) {
        const HttpRequest& request = reader.request();
        found.push_back(request.method + " " + request.path + " " + request.host + " " +
                        request.body + (reader.keeps_alive() ? " +" : " -"));
      }
      if (outcome == Outcome::kRefused) {
        found.push_back(std::to_string(reader.status()) + " " + reader.message());
        return found;
      }
    }
  }
  if (reader.receiving()) found.emplace_back("…");
  return found;
}

using Found = std::vector<std::string>;

// In pieces of every size the same comes out.
void Expect(std::string_view bytes, const Found& expected) {
  for (std::size_t size = 1; size <= bytes.size(); ++size) {
    ASSERT_EQ(ReadAll(bytes, size), expected) << "pieces of " << size;
  }
}

TEST(HttpRequestReaderTest, RequestsComeOneAfterTheOther) {
  Expect(
      "\r\nGET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /d HTTP/1.1\r\nHost: y\r\nContent-Length: 3\r\nConnection: close\r\n\r\n123",
      {"GET /a x  +", "POST /d y 123 -"});
}

TEST(HttpRequestReaderTest, ChunksAreJoined) {
  Expect(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET / HTTP/1.0\r\n\r\n",
      {"POST / x abcde +", "GET /   -"});
}

TEST(HttpRequestReaderTest, AClientMayWaitForContinue) {
  Expect("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
         {"continue", "POST / x ab +"});
}

TEST(HttpRequestReaderTest, APartIsWaitedFor) {
  Expect("GET / HTTP/1.1\r\nHo", {"…"});
  Expect("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na", {"…"});
  Expect("\r\n\r\n", {});
}

TEST(HttpRequestReaderTest, BadRequestsAreRefused) {
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  Expect("GET / HTTP/2.7\r\n\r\n", {"505 HTTP 1.0 and 1.1 are spoken"});
  Expect("GET /a: 2\r\n\r\n{}GET /b HTTP/1v1/chat/c.0\r\n\r\n",
         {"400 bad HTTP: the head is not whole"});
  const std::string trailer = post + "Transfer-Encoding: chunked\r\n\r\n0\r\nabc\r\n&\r\n\r\n";
  for (std::size_t size = 1; size <= trailer.size(); ++size) {
    const Found found = ReadAll(trailer, size);  // Beast asserts, or says why
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].starts_with("400 bad HTTP")) << found[0];
  }
  Expect("GET / HTTP/1.2\r\nHost: x\r\n\r\n", {"505 HTTP 1.0 and 1.1 are spoken"});
  Expect(post + "A: b\r\n c\r\n\r\n", {"400 a folded header is not supported"});
  Expect(post + "Content-Length: 101\r\n\r\n", {"413 the body is larger than 100 bytes"});
  Expect(post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         {"400 bad HTTP: bad Transfer-Encoding"});
  Expect(post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
         {"400 the length of the body is given twice"});
  Expect("GET / HTTP/1.1\r\nA: b\r\n\r\n", {"400 the host is missing"});
  Expect("GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", {"400 the host is given twice"});
  Expect("GET /" + std::string(300, 'a'), {"431 the head of the request is too large"});
}

TEST(HttpRequestReaderTest, ARefusalKnowsThePath) {
  HttpRequestReader reader(200, 10);
  std::string inbox = "POST /api/chat HTTP/1.1\r\nContent-Length: 11\r\n\r\n";
  EXPECT_EQ(reader.Read(inbox), Outcome::kRefused);
  EXPECT_EQ(reader.request().path, "/api/chat");
}

}  // namespace
}  // namespace kvcache::server::http_request_reader_test
