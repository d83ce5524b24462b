// The thread of the sockets goes on when an allocation fails, whichever it is. The route uses no JSON:
// nlohmann's values allocate in their destructors, and the process ends if that fails.
#include <string>

#include "server/server_testing.h"
#include "support/counting_new.h"

namespace kvcache::server::memory_test {
namespace {

using MemoryTest = ServerTest;

// Sends the request and reads to the end of the connection, without an allocation. Returns whether
// there was an answer.
bool Ask(std::uint16_t port, std::string_view request) {
  Client client(port);
  return client.Write(request) && client.Discard() > 0;
}

TEST_F(MemoryTest, AnyFailureEndsAConnectionAtMost) {
  const std::string request =
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  int lost = 0;
  bool failed = true;
  for (int n = 1; failed; ++n) {
    kvcache::testing::FailAllocation(n);
    const bool answered = Ask(server_->port(), request);
    failed = !kvcache::testing::AllocationFailurePending();
    kvcache::testing::FailAllocation(0);
    lost += answered ? 0 : 1;
    ASSERT_LT(n, 1000);
    ASSERT_TRUE(answered || failed);
    ASSERT_EQ(Get("/health").status, 200) << "after allocation " << n;
  }
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace kvcache::server::memory_test
