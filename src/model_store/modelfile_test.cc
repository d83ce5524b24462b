#include "model_store/modelfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcache::modelfile_test {
namespace {

using ::testing::HasSubstr;

TEST(ModelfileTest, ReadsEveryInstruction) {
  const auto file = ParseModelfile(R"x(# a model
FROM ./weights.gguf
draft small
PARAMETER temperature 0.5
PARAMETER temperature 0.25
PARAMETER stop "<|end|>"
PARAMETER stop two words
TEMPLATE """{{ messages }}
"quoted" """
  SYSTEM "You are
short."
MESSAGE user Who are you?
MESSAGE assistant """ A pirate. """
LICENSE one
LICENSE """
two
"""
REQUIRES 0.14.0)x");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->from, "./weights.gguf");
  EXPECT_EQ(file->draft, "small");
  const std::vector<StoredParameter> parameters = {
      {"temperature", "0.25"}, {"stop", "<|end|>"}, {"stop", "two words"}};
  EXPECT_EQ(file->parameters, parameters);
  EXPECT_EQ(*file->chat_template, "{{ messages }}\n\"quoted\" ");
  EXPECT_EQ(*file->system, "You are\nshort.");
  const std::vector<StoredMessage> messages = {{"user", "Who are you?"},
                                               {"assistant", " A pirate. "}};
  EXPECT_EQ(file->messages, messages);
  const std::vector<std::string> licenses = {"one", "\ntwo\n"};
  EXPECT_EQ(file->licenses, licenses);
  EXPECT_EQ(file->requires_version, "0.14.0");
  const auto again = ParseModelfile(ModelfileText(*file));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, *file);
}

TEST(ModelfileTest, WindowsLinesAndByteOrderMark) {
  const auto file = ParseModelfile(
      "\xef\xbb\xbf"
      "FROM a\r\nSYSTEM \"\"\"b\r\nc\"\"\"\r\n");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->from, "a");
  EXPECT_EQ(*file->system, "b\nc");
}

TEST(ModelfileTest, ErrorsNameTheLine) {
  const auto message = [](const std::string& text) {
    const auto file = ParseModelfile(text);
    return file.ok() ? "it parses" : file.status().message();
  };
  EXPECT_EQ(message(""), "line 1: the file ends without FROM");
  EXPECT_EQ(message("SYSTEM x\n# y\n"), "line 2: the file ends without FROM");
  EXPECT_THAT(message("FROM a\nFORM b\n"), HasSubstr("line 2: 'FORM' is no instruction"));
  EXPECT_THAT(message("FROM a\nFROM b\n"), HasSubstr("line 2: there is a second FROM"));
  EXPECT_THAT(message("FROM"), HasSubstr("line 1: FROM has no value"));
  EXPECT_THAT(message("FROM a\nSYSTEM \"\"\"b\n\nc"), HasSubstr("line 2: its quotes"));
  EXPECT_THAT(message("FROM a\nPARAMETER temp 1"), HasSubstr("line 2: there is no parameter"));
  EXPECT_THAT(message("FROM a\nPARAMETER top_k 1.5"), HasSubstr("must be a whole number"));
  EXPECT_THAT(message("FROM a\nPARAMETER top_p nan"), HasSubstr("must be a number"));
  EXPECT_THAT(message("FROM a\nMESSAGE tool x"), HasSubstr("line 2: the role"));
  EXPECT_THAT(message("FROM a\n\nADAPTER"), HasSubstr("line 3: ADAPTER has no value"));
  EXPECT_THAT(message("FROM a\n\nADAPTER \"\""), HasSubstr("line 3: ADAPTER is empty"));
  EXPECT_THAT(message("FROM a\nREQUIRES new"), HasSubstr("must be a version"));
}

TEST(ModelfileTest, RequiresIsComparedWithTheProgram) {
  struct Case {
    const char* needed;
    const char* program;
    bool fits;
  };
  for (const Case& each :
       {Case{"", "0.1.0", true}, Case{"0.1.0", "0.1.0", true}, Case{"0.1", "0.1.0", true},
        Case{"0.1.1", "0.1.0", false}, Case{"0.9.9", "0.10.0", true},
        Case{"0.10.0", "0.9.9", false}, Case{"1", "0.99.99", false}, Case{"00.001", "0.1.0", true},
        Case{"99999999999999999999999.0.0", "1.0.0", false}}) {
    const Status status = CheckRequires(each.needed, each.program);
    EXPECT_EQ(status.ok(), each.fits) << each.needed << " and " << each.program;
  }
  EXPECT_EQ(
      CheckRequires("0.14.0", "0.1.0").message(),
      "REQUIRES is 0.14.0, this program is 0.1.0; use a later version, or leave REQUIRES out");
}

TEST(ModelfileTest, KnowsGoTemplates) {
  EXPECT_TRUE(IsGoTemplate("{{ .Prompt }}"));
  EXPECT_TRUE(IsGoTemplate("{{- if .System }}a{{ end }}"));
  EXPECT_TRUE(IsGoTemplate("{{- range $i, $_ := .Messages }}"));
  EXPECT_FALSE(IsGoTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"));
  EXPECT_FALSE(IsGoTemplate("{{- message['content'] -}}"));
  EXPECT_FALSE(IsGoTemplate("{% if x %}{{ template }}{% endif %}{{ end if end else x }}"));
}

}  // namespace
}  // namespace kvcache::modelfile_test
