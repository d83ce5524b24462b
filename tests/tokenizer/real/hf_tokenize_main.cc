// Imports a tokenizer.json and prints the ids of texts and of conversations.
//
//   usage: kvcache_hf_tokenize TOKENIZER_JSON
//   in     per line a JSON string, or {"template": "...", "messages": [...], "tools": [...]}
//   out    a JSON array of ids per line; special tokens in texts stay text

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "chat_template/chat_format.h"
#include "convert/hf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

using nlohmann::json;

// Returns one more than the largest id.
std::int64_t Rows(const json& tokenizer) {
  std::int64_t rows = 0;
  for (const auto& [text, id] : tokenizer.at("model").at("vocab").items()) {
    rows = std::max(rows, id.get<std::int64_t>() + 1);
  }
  for (const json& added : tokenizer.at("added_tokens")) {
    rows = std::max(rows, added.at("id").get<std::int64_t>() + 1);
  }
  return rows;
}

Result<std::vector<std::int32_t>> Encode(const Tokenizer& tokenizer, const std::string& line) {
  const auto asked = nlohmann::ordered_json::parse(line);
  if (asked.is_string())
    return tokenizer.Encode(asked.get<std::string>(), {.add_bos = AddToken::kNo});
  KVCACHE_ASSIGN_OR_RETURN(
      const ChatFormat format,
      ChatFormat::FromSource(asked.at("template").get<std::string>(), "template", tokenizer));
  ChatInput input;
  input.messages = asked.at("messages");
  input.tools = asked.at("tools");
  KVCACHE_ASSIGN_OR_RETURN(ChatPrompt prompt, format.Write(std::move(input)));
  return std::move(prompt.marked.tokens);
}

Status Run(const char* path) {
  std::ifstream file(path);
  const json tokenizer = json::parse(file);
  KVCACHE_ASSIGN_OR_RETURN(const HfTokenizer imported,
                           ConvertHfTokenizer(tokenizer, Rows(tokenizer), HfFallbackKind::kScores));
  KVCACHE_ASSIGN_OR_RETURN(const auto encoder, MakeTokenizer(imported.data));
  std::string line;
  while (std::getline(std::cin, line)) {
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, Encode(*encoder, line));
    std::cout << json(ids).dump() << '\n';
  }
  return Status::Ok();
}

}  // namespace
}  // namespace kvcache

int main(int, char** argv) {
  const kvcache::Status status = kvcache::Run(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
