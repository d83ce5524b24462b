#include "pull/hub_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcache::pull {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<HubFile> Files(const std::vector<std::string>& paths) {
  std::vector<HubFile> files;
  for (const std::string& path : paths) files.push_back({path, "", 1});
  return files;
}

// Returns the paths of the weights, the draft and the projector; or the error.
std::vector<std::string> Chosen(const std::vector<std::string>& paths, std::string_view tag) {
  const auto chosen = ChooseFiles(Files(paths), tag);
  if (!chosen.ok()) return {"error: " + chosen.status().message()};
  std::vector<std::string> found;
  for (const HubFile& file : chosen->weights) found.push_back(file.path);
  for (const HubFile& file : chosen->draft) found.push_back("draft " + file.path);
  if (chosen->projector) found.push_back("projector " + chosen->projector->path);
  return found;
}

TEST(HubFilesTest, ATagIsAWordOfTheName) {
  const std::vector<std::string> files = {"m-Q4_K_M.gguf",     "m-Q4_K_S.gguf",     "m.Q8_0.gguf",
                                          "m-UD-Q4_K_XL.gguf", "imatrix-Q8_0.gguf", "README.md"};
  EXPECT_THAT(Chosen(files, "Q4_K_M"), ElementsAre("m-Q4_K_M.gguf"));
  EXPECT_THAT(Chosen(files, "q4_k_s"), ElementsAre("m-Q4_K_S.gguf"));
  EXPECT_THAT(Chosen(files, "Q8_0"), ElementsAre("m.Q8_0.gguf"));
  EXPECT_THAT(Chosen(files, "Q4_K_XL"), ElementsAre("m-UD-Q4_K_XL.gguf"));
  EXPECT_THAT(Chosen(files, "Q4_K"), ElementsAre(HasSubstr("no file of it has the tag 'Q4_K'")));
  EXPECT_THAT(Chosen(files, "Q5_0"), ElementsAre(HasSubstr("m-UD-Q4_K_XL")));
}

TEST(HubFilesTest, LatestIsTheUsualOne) {
  EXPECT_THAT(Chosen({"m-Q8_0.gguf", "m-Q4_K_M.gguf"}, "latest"), ElementsAre("m-Q4_K_M.gguf"));
  EXPECT_THAT(Chosen({"m-F16.gguf", "m-Q8_0.gguf"}, "latest"), ElementsAre("m-Q8_0.gguf"));
  EXPECT_THAT(Chosen({"odd.gguf"}, "latest"), ElementsAre("odd.gguf"));
  EXPECT_THAT(Chosen({"odd.gguf", "even.gguf"}, "latest"),
              ElementsAre(HasSubstr("name a quantization")));
  EXPECT_THAT(Chosen({"model.safetensors"}, "latest"), ElementsAre(HasSubstr("no .gguf file")));
  EXPECT_THAT(Chosen({"aa-Q4_0.gguf", "bb-Q4_0.gguf"}, "Q4_0"), ElementsAre(HasSubstr("several")));
}

TEST(HubFilesTest, PartsAreInOrderAndWhole) {
  EXPECT_THAT(
      Chosen({"BF16/m-00002-of-00002.gguf", "BF16/m-00001-of-00002.gguf", "m-Q8_0.gguf"}, "BF16"),
      ElementsAre("BF16/m-00001-of-00002.gguf", "BF16/m-00002-of-00002.gguf"));
  EXPECT_THAT(Chosen({"m-Q8_0-00002-of-00002.gguf"}, "Q8_0"),
              ElementsAre(HasSubstr("'m-Q8_0-00001-of-00002.gguf' is missing")));
}

TEST(HubFilesTest, ManyPartsTakeNoTime) {
  std::vector<std::string> parts;
  for (int part = 1; part <= 99999; ++part) {
    const std::string digits = std::to_string(part);
    parts.push_back("m-" + std::string(5 - digits.size(), '0') + digits + "-of-99999.gguf");
  }
  EXPECT_THAT(Chosen(parts, "latest"), ElementsAre(HasSubstr("99999 files; at most 4096")));
  parts = {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "m-00002-of-00002.gguf"};
  EXPECT_THAT(Chosen(parts, "latest"), ElementsAre(HasSubstr("listed twice")));
}

TEST(HubFilesTest, ProjectorsAndDrafts) {
  EXPECT_THAT(
      Chosen({"m-Q8_0.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "m-draft-Q8_0.gguf"}, "latest"),
      ElementsAre("m-Q8_0.gguf", "draft m-draft-Q8_0.gguf", "projector mmproj-F16.gguf"));
  EXPECT_THAT(Chosen({"drafty-Q8_0.gguf"}, "latest"), ElementsAre("drafty-Q8_0.gguf"));
}

}  // namespace
}  // namespace kvcache::pull
