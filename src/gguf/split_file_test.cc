#include "gguf/split_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/strings.h"
#include "gguf/gguf.h"
#include "gguf/gguf_summary.h"
#include "gguf/gguf_writer.h"

namespace kvcache::split_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SplitNameTest, HasFiveDigits) {
  const auto name = ParseSplitName("a/x-00002-of-00010.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->prefix, "a/x");
  EXPECT_EQ(name->part, 2);
  EXPECT_EQ(name->count, 10);
  EXPECT_EQ(name->Path(10), "a/x-00010-of-00010.gguf");
  for (const char* other :
       {"x.gguf", "x-0002-of-0010.gguf", "x-00011-of-00010.gguf", "x-00000-of-00010.gguf",
        "x-00002-of-00010", "-of-00010.gguf", "x00002-of-00010.gguf", "x-00002_of-00010.gguf"}) {
    EXPECT_FALSE(ParseSplitName(other).has_value()) << other;
  }
}

TEST(SplitNameTest, PathsOfParts) {
  EXPECT_THAT(PartPaths("f/m.gguf"), ElementsAre("f/m.gguf"));
  EXPECT_THAT(PartPaths("f/m-00002-of-00002.gguf"),
              ElementsAre("f/m-00001-of-00002.gguf", "f/m-00002-of-00002.gguf"));
  EXPECT_THAT(PartPaths("a,b/x,y"), ElementsAre("a,b/x", "a,b/y"));
  for (const char* path : {"f/m.gguf", "f/m-00001-of-00002.gguf", "a,b/x,y", "x"}) {
    EXPECT_EQ(JoinedPath(PartPaths(path)), path);
  }
}

class SplitFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / StrCat("kvcache_split_", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(int part) const {
    return StrCat(folder_.string(), "/m-0000", part, "-of-00002.gguf");
  }

  // Writes a part of two, with one tensor of four values.
  void Write(int part, const std::string& tensor, const std::string& model = "m") {
    GgufHeader header;
    header.SetString("general.name", model);
    header.SetUint32("split.no", static_cast<std::uint32_t>(part - 1));
    header.SetUint32("split.count", 2);
    header.SetUint32("split.tensors.count", 2);
    header.AddTensor(tensor, GgmlType::kF32, {4});
    std::ofstream file(Path(part), std::ios::binary);
    file << *header.Serialize() << std::string(header.data_bytes(), static_cast<char>(part));
  }

  std::string ErrorOf(int part) const {
    const auto file = GgufFile::Open(Path(part));
    return file.ok() ? "" : file.status().message();
  }

  std::filesystem::path folder_;
};

TEST_F(SplitFileTest, JoinsTheTensors) {
  Write(1, "a");
  Write(2, "b");
  const auto file = GgufFile::Open(Path(2));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->path(), Path(1));
  EXPECT_EQ((*file)->parts().size(), 2u);
  EXPECT_EQ((*file)->size_bytes(),
            std::filesystem::file_size(Path(1)) + std::filesystem::file_size(Path(2)));
  for (const auto& [name, part] : {std::pair{"a", 0u}, std::pair{"b", 1u}}) {
    const GgufTensor* tensor = (*file)->FindTensor(name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->part, part);
    EXPECT_EQ(tensor->bytes[15], static_cast<std::byte>(part + 1));
    (*file)->WillNeed(*tensor);
    (*file)->Drop(*tensor);
  }
}

TEST_F(SplitFileTest, IdentityAndDigestAreOfAllParts) {
  Write(1, "a");
  Write(2, "b");
  const auto facts = [&] {
    const auto file = GgufFile::Open(Path(1));
    EXPECT_TRUE(file.ok());
    return file.ok() ? std::pair((*file)->identity().inode, SummaryOf(**file).digest)
                     : std::pair<std::uint64_t, std::string>();
  };
  const auto before = facts();
  Write(2, std::string(64, 'b'));
  const auto after = facts();
  EXPECT_NE(before.first, after.first);
  EXPECT_NE(before.second, after.second);
}

TEST_F(SplitFileTest, ErrorsNameTheFileAndTheRule) {
  Write(1, "a");
  EXPECT_THAT(ErrorOf(1), HasSubstr(Path(2)));
  EXPECT_THAT(ErrorOf(1), HasSubstr("needs all parts"));
  Write(2, "a");
  EXPECT_THAT(ErrorOf(1), HasSubstr("tensor 'a' occurs twice"));
  EXPECT_THAT(ErrorOf(1), HasSubstr(Path(2)));
  Write(2, "b", "another");
  EXPECT_THAT(ErrorOf(2), HasSubstr("'general.name'"));
  EXPECT_THAT(ErrorOf(2), HasSubstr("another model"));
  std::filesystem::copy_file(Path(1), Path(2), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(ErrorOf(1), HasSubstr("split.no is 0; must be 1"));
}

}  // namespace
}  // namespace kvcache::split_file_test
