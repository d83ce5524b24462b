#include "pull/hub_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/strings.h"

namespace kvcache::pull {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const auto list = ParseHubList(text);
  return list.ok() ? "" : list.status().message();
}

TEST(HubListTest, KeepsGgufFiles) {
  const auto list = ParseHubList(
      R"({"id":"me/tiny","tags":["a",{"sha":"no"}],"sha":"abc","siblings":[
          {"rfilename":"README.md","size":3},
          {"rfilename":"a/m.GGUF","size":5,"blobId":"x","lfs":{"sha256":"ff","size":7,"more":{"size":9}}},
          {"lfs":{"size":8,"sha256":"ee"},"size":2,"rfilename":"n.gguf"},
          {"rfilename":"o.gguf","size":4}],"config":{"siblings":[1]}})");
  ASSERT_TRUE(list.ok()) << list.status().message();
  EXPECT_EQ(list->revision, "abc");
  ASSERT_EQ(list->files.size(), 3u);
  EXPECT_EQ(list->files[0].path, "a/m.GGUF");
  EXPECT_EQ(list->files[0].sha256, "ff");
  EXPECT_EQ(list->files[0].bytes, 7u);
  EXPECT_EQ(list->files[1].bytes, 8u);
  EXPECT_EQ(list->files[2].sha256, "");
  EXPECT_EQ(list->files[2].bytes, 4u);
}

TEST(HubListTest, RefusesWhatIsNoList) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("1"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("no list of files"));
  EXPECT_THAT(ErrorOf(R"({"siblings":1})"), HasSubstr("no list of files"));
  EXPECT_THAT(ErrorOf(R"({"siblings":[1]})"), HasSubstr("not an object"));
  EXPECT_THAT(ErrorOf(R"({"siblings":[[]]})"), HasSubstr("not an object"));
  EXPECT_THAT(ErrorOf(R"({"siblings":[{}]})"), HasSubstr("no name"));
  EXPECT_THAT(ErrorOf(R"({"siblings":[{"rfilename":"../a.gguf"}]})"), HasSubstr("'..'"));
  EXPECT_THAT(ErrorOf(R"({"siblings":[{"rfilename":"a.gguf","size":9223372036854775808}]})"),
              HasSubstr("must have at most"));
  EXPECT_THAT(ErrorOf(std::string(100000, '[')), HasSubstr("nests deeper"));
  std::string many = R"({"siblings":[)";
  for (std::size_t i = 0; i <= kMaxHubFiles; ++i) {
    many += StrCat(i > 0 ? "," : "", R"({"rfilename":")", i, R"(.gguf"})");
  }
  EXPECT_THAT(ErrorOf(many + "]}"), HasSubstr("more than 10000"));
}

}  // namespace
}  // namespace kvcache::pull
