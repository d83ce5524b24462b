// Chat templates: one, several with names in a list, or several in files of their own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/strings.h"
#include "convert/import_model.h"
#include "import/hf_writer.h"
#include "make_model/make_model.h"

namespace kvcache::import_templates_test {
namespace {

namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;      // name and contents
using Templates = std::map<std::string, std::string>;  // key, behind "tokenizer.", and template

class ImportTemplates : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    make_model::Request request{.architecture = "llama"};
    request.shape.layers = 1;
    request.shape.vocab = 601;
    ASSERT_TRUE(make_model::MakeModel(request, folder_ + "/made.gguf").ok());
    made_ = GgufFile::Open(folder_ + "/made.gguf").value();
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Imports the model with these files beside it, and returns its templates.
  Templates Import(const Files& files) {
    const std::string directory = folder_ + "/model", path = folder_ + "/imported.gguf";
    fs::remove_all(directory);
    WriteHfDirectory(*made_, directory, {});
    for (const auto& [name, contents] : files) {
      fs::create_directories(fs::path(directory + "/" + name).parent_path());
      std::ofstream(directory + "/" + name) << contents;
    }
    const auto result = ImportModel({.directory = directory, .path = path});
    EXPECT_TRUE(result.ok()) << result.status().message();
    const auto file = GgufFile::Open(path).value();
    Templates templates;
    for (const char* key : {"chat_template", "chat_template.tool_use", "chat_template.rag"}) {
      const auto text = file->GetString(StrCat("tokenizer.", key));
      if (text.ok()) templates.emplace(key, *text);
    }
    if (const auto names = file->GetStrings("tokenizer.chat_templates"); names.ok()) {
      std::string& all = templates["chat_templates"];
      for (const std::string_view name : *names) all += StrCat(name, ' ');
    }
    return templates;
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "/import_templates.", getpid());
  std::unique_ptr<GgufFile> made_;
};

TEST_F(ImportTemplates, OneTemplate) {
  EXPECT_EQ(Import({{"chat_template.jinja", "{{ 1 }}"}}),
            (Templates{{"chat_template", "{{ 1 }}"}}));
  EXPECT_EQ(Import({{"chat_template.json", R"({"chat_template": "{{ 2 }}"})"}}),
            (Templates{{"chat_template", "{{ 2 }}"}}));
}

TEST_F(ImportTemplates, AListWithNames) {
  const std::string list = R"({"chat_template": [{"name": "default", "template": "a"}, {"name": 1},
    {"name": "rag", "template": "b"}, {"name": "tool_use", "template": "c"}]})";
  EXPECT_EQ(Import({{"chat_template.json", list}}),
            (Templates{{"chat_template", "a"},
                       {"chat_template.rag", "b"},
                       {"chat_template.tool_use", "c"},
                       {"chat_templates", "rag tool_use "}}));
}

TEST_F(ImportTemplates, FilesWithNames) {
  EXPECT_EQ(Import({{"chat_template.jinja", "a"},
                    {"chat_template.json", R"({"chat_template": "not this"})"},
                    {"additional_chat_templates/tool_use.jinja", "t"},
                    {"additional_chat_templates/notes.txt", "no template"}}),
            (Templates{{"chat_template", "a"},
                       {"chat_template.tool_use", "t"},
                       {"chat_templates", "tool_use "}}));
}

}  // namespace
}  // namespace kvcache::import_templates_test
