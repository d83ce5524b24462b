// Imports a tokenizer.json and prints the ids of texts.
//
//   usage: kvcache_hf_tokenize TOKENIZER_JSON
//   in     a JSON string per line
//   out    a JSON array of ids per line; special tokens in the text stay text

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

Status Run(const char* path) {
  std::ifstream file(path);
  const json tokenizer = json::parse(file);
  KVCACHE_ASSIGN_OR_RETURN(const HfTokenizer imported,
                           ConvertHfTokenizer(tokenizer, Rows(tokenizer), HfFallbackKind::kMerges));
  KVCACHE_ASSIGN_OR_RETURN(const auto encoder, MakeTokenizer(imported.data));
  std::string line;
  while (std::getline(std::cin, line)) {
    KVCACHE_ASSIGN_OR_RETURN(
        const std::vector<std::int32_t> ids,
        encoder->Encode(json::parse(line).get<std::string>(), {.add_bos = AddToken::kNo}));
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
