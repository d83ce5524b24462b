// The templates of this folder, and a tokenizer for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "chat_template/chat_format.h"

namespace kvcache {

// A token for each byte; nothing is merged.
inline std::unique_ptr<Tokenizer> ByteTokenizer() {
  TokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    data.tokens.push_back(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">");
    data.types.push_back(6);
  }
  data.scores.assign(data.tokens.size(), -1);
  data.unknown = 0;
  data.bos = 1;
  data.eos = 2;
  data.add_bos = false;
  data.add_eos = false;
  data.add_space_prefix = false;
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

struct TemplateFile {
  std::string name;
  std::string source;
};

inline std::vector<TemplateFile> TemplateFiles() {
  std::vector<TemplateFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(KVCACHE_TEMPLATES)) {
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    files.push_back({entry.path().filename().string(), text.str()});
  }
  std::sort(files.begin(), files.end(),
            [](const TemplateFile& a, const TemplateFile& b) { return a.name < b.name; });
  EXPECT_FALSE(files.empty());
  return files;
}

}  // namespace kvcache
