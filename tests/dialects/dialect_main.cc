// Names the dialects of chat templates. Reads one JSON object per line and prints one for each.
//
//   in   {"template": "…", "special": ["<|im_end|>", …],   the special tokens of the vocabulary
//         "end": "<|im_end|>"}                             that ends answers, if it has one
//   out  {"dialect": "hermes", "thoughts": "</think>",     what ends thoughts; "" if there are none
//         "arguments": "object" | "text", "content": "" | null, "key": "reasoning_content"}
//        {"error": "…"}
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "dialect/recognise.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

// Makes a vocabulary of bytes and special tokens.
Result<std::unique_ptr<Tokenizer>> MakeBytes(const ordered_json& special, const ordered_json& end) {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    (void)std::snprintf(text, sizeof text, "<0x%02X>", byte);
    data.tokens.emplace_back(text);
    data.types.push_back(static_cast<int>(TokenKind::kByte));
  }
  for (const ordered_json& text : special) {
    if (text == end) data.eos = static_cast<std::int64_t>(data.tokens.size());
    data.tokens.push_back(text);
    data.types.push_back(static_cast<int>(TokenKind::kControl));
  }
  return MakeTokenizer(data);
}

Result<ordered_json> Answer(const ordered_json& test) {
  KVCACHE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Tokenizer> tokenizer,
      MakeBytes(test.value("special", ordered_json::array()), test.value("end", ordered_json())));
  KVCACHE_ASSIGN_OR_RETURN(
      const ChatFormat format,
      ChatFormat::FromSource(test.at("template").get<std::string>(), "test", *tokenizer));
  const Recognition found = RecogniseDialect(format, *tokenizer);
  const HistoryForm& history = found.history;
  return ordered_json{{"dialect", found.dialect.name},
                      {"thoughts", found.reasons ? found.dialect.thoughts.end : ""},
                      {"arguments", history.text_arguments ? "text" : "object"},
                      {"content", history.null_content ? ordered_json() : ordered_json("")},
                      {"key", history.thoughts_key}};
}

}  // namespace
}  // namespace kvcache

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto answer = kvcache::Answer(nlohmann::ordered_json::parse(line));
    const nlohmann::ordered_json error = {{"error", answer.ok() ? "" : answer.status().message()}};
    std::cout << (answer.ok() ? *answer : error).dump() << '\n';
  }
  return 0;
}
