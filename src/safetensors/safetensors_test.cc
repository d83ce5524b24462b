#include "safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvcache::safetensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileOf(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 255);
  return file + header + data;
}

Result<std::unique_ptr<SafetensorsFile>> Parse(const std::string& bytes) {
  return SafetensorsFile::Parse(std::as_bytes(std::span(bytes)), "test");
}

TEST(SafetensorsTest, ReadsTensors) {
  const std::string bytes = FileOf(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}  )",
      "abcdefgh");
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const SafeTensor* tensor = (*file)->Find("b");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->type, "BF16");
  EXPECT_THAT(tensor->shape, ElementsAre(2, 1));
  EXPECT_EQ(tensor->bytes[0], std::byte{'e'});
  EXPECT_EQ((*file)->Find("a")->elements(), 1);
  EXPECT_EQ((*file)->Find("c"), nullptr);
}

TEST(SafetensorsTest, RefusesWhatContradictsItself) {
  const auto message = [](const std::string& header, const std::string& data) {
    const std::string bytes = FileOf(header, data);
    const auto file = Parse(bytes);
    return file.ok() ? "it parses" : file.status().message();
  };
  const auto tensor = [](const std::string& type, const std::string& shape, int begin, int end) {
    return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  EXPECT_FALSE(Parse("1234567").ok());
  EXPECT_THAT(Parse(std::string(8, '\xff')).status().message(), HasSubstr("cut short"));
  EXPECT_THAT(message("{", ""), HasSubstr("not JSON"));
  EXPECT_THAT(message("[]", ""), HasSubstr("not an object"));
  EXPECT_THAT(message(std::string(100000, '['), ""), HasSubstr("not"));
  EXPECT_THAT(message(R"({"a":1})", ""), HasSubstr("lacks"));
  EXPECT_THAT(message(R"({"a":)" + tensor("F32", "[1]", 0, 8) + "}", "12345678"),
              HasSubstr("its shape needs 4"));
  EXPECT_THAT(message(R"({"a":)" + tensor("F32", "[2]", 0, 8) + "}", "1234"),
              HasSubstr("exceed the file's 4"));
  EXPECT_THAT(message(R"({"a":)" + tensor("F9", "[1]", 0, 4) + "}", "1234"), HasSubstr("F9"));
  EXPECT_THAT(message(R"({"a":)" + tensor("U8", "[4294967296,4294967296]", 0, 0) + "}", ""),
              HasSubstr("impossible"));
  EXPECT_THAT(message(R"({"a":)" + tensor("U8", "[-1]", 0, 0) + "}", ""), HasSubstr("impossible"));
  EXPECT_THAT(
      message(R"({"a":)" + tensor("U8", "[2]", 0, 2) + R"(,"b":)" + tensor("U8", "[2]", 1, 3) + "}",
              "123"),
      HasSubstr("overlap"));
  EXPECT_THAT(message(R"({"a":)" + tensor("U8", "[2]", 0, 2) + "}", "123"), HasSubstr("follow"));
  EXPECT_THAT(
      message(R"({"a":)" + tensor("U8", "[1]", 0, 1) + R"(,"a":)" + tensor("U8", "[1]", 0, 1) + "}",
              "1"),
      HasSubstr("twice"));
}

}  // namespace
}  // namespace kvcache::safetensors_test
