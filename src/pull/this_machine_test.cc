#include "pull/this_machine.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

namespace kvcache::pull {
namespace {

TEST(ThisMachineTest, NamesInEveryForm) {
  for (const char* host :
       {"localhost", "localhost:1", "LOCALHOST:5000", "localhost.", "a.localhost", "127.0.0.1:80",
        "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "0.0.0.0", "0.0.0.0:5000", "0",
        "[::1]:1", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:0.0.0.0]:1"}) {
    EXPECT_TRUE(NamesThisMachine(host)) << host;
  }
  for (const char* host : {"127.evil.test", "localhost.evil.test", "h:1", "[::2]", "128.0.0.1",
                           "10.0.0.1", "", ":1", "[", "[]", "1.0.0.0", "[::ffff:10.0.0.1]"}) {
    EXPECT_FALSE(NamesThisMachine(host)) << host;
  }
}

TEST(ThisMachineTest, ResolvedAddresses) {
  const auto v4 = [](const char* text) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, text, &address.sin_addr), 1);
    sockaddr general{};
    std::memcpy(&general, &address, sizeof(address));
    return IsThisMachine(general);
  };
  EXPECT_TRUE(v4("127.0.0.1"));
  EXPECT_TRUE(v4("127.255.0.9"));
  EXPECT_TRUE(v4("0.0.0.0"));
  EXPECT_FALSE(v4("192.0.2.1"));  // of documents; no interface has it
  EXPECT_TRUE(IsAddressOfThisMachine("::1"));
  EXPECT_TRUE(IsAddressOfThisMachine("127.0.0.1"));
  EXPECT_FALSE(IsAddressOfThisMachine("2001:db8::1"));
  EXPECT_FALSE(IsAddressOfThisMachine(""));
  EXPECT_FALSE(IsAddressOfThisMachine("localhost"));
  sockaddr other{};
  other.sa_family = AF_UNIX;
  EXPECT_FALSE(IsThisMachine(other));
}

}  // namespace
}  // namespace kvcache::pull
