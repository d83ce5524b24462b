#include "server/request/messages.h"

#include <gtest/gtest.h>

namespace kvcache::server {
namespace {

TEST(Messages, ThoughtsOfEveryApiHaveOneName) {
  const Json parts = Json::array(
      {{{"type", "thinking"}, {"thinking", "hm"}}, {{"type", "text"}, {"text", "said"}}});
  for (const Json& fields :
       {Json({{"content", "said"}, {"reasoning_content", "hm"}}),
        Json({{"content", "said"}, {"reasoning", "hm"}}),
        Json({{"content", "said"}, {"thinking", "hm"}}), Json({{"content", parts}})}) {
    Json message = {{"role", "assistant"}};
    message.update(fields);
    const auto read = ReadMessages(Json::array({{{"role", "user"}, {"content", "q"}}, message}));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ((*read)[1]["reasoning_content"], "hm");
    EXPECT_EQ((*read)[1]["content"], "said");
  }
}

}  // namespace
}  // namespace kvcache::server
