// embeddings_oracle: writes the vectors of token lists, or the scores of pairs, for compare.py.
//
// Usage: embeddings_oracle MODEL THREADS PASS_TOKENS < INPUTS > VECTORS
//   INPUTS    one input a line: 1,52,7
//   VECTORS   f32, one vector after another, not normalized; a score for each input of a reranker
// Or, for pairs.py: embeddings_oracle pairs VOCABULARY < PAIRS > TOKENS
//   PAIRS     a query, a tab and a document on each line
//   TOKENS    those of a pair on each line
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "embedding/input_texts.h"
#include "gguf/gguf.h"
#include "kvcache_engine/embedder.h"
#include "tokenizer/tokenizer.h"

namespace {

using kvcache::Embedder;

std::vector<std::vector<std::int32_t>> ReadInputs() {
  std::vector<std::vector<std::int32_t>> inputs;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream numbers(line);
    inputs.emplace_back();
    for (std::string number; std::getline(numbers, number, ',');) {
      inputs.back().push_back(std::atoi(number.c_str()));
    }
  }
  return inputs;
}

kvcache::Result<std::vector<float>> Values(Embedder& embedder) {
  const std::vector<std::vector<std::int32_t>> inputs = ReadInputs();
  if (embedder.info().is_reranker) {
    KVCACHE_ASSIGN_OR_RETURN(kvcache::Ranks ranks, embedder.Rank(inputs));
    return std::move(ranks.scores);
  }
  KVCACHE_ASSIGN_OR_RETURN(kvcache::Embeddings vectors,
                           embedder.Embed(inputs, {.normalize = false}));
  return std::move(vectors.values);
}

kvcache::Status WritePairs(const char* path) {
  KVCACHE_ASSIGN_OR_RETURN(const auto file, kvcache::GgufFile::Open(path));
  KVCACHE_ASSIGN_OR_RETURN(const auto tokenizer, kvcache::MakeTokenizer(*file));
  KVCACHE_ASSIGN_OR_RETURN(const auto texts, kvcache::InputTexts::Make(*file, *tokenizer, 4096));
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t tab = line.find('\t');
    KVCACHE_ASSIGN_OR_RETURN(
        const auto tokens,
        texts.EncodePair(line.substr(0, tab), line.substr(tab + 1), kvcache::LongInput::kRefuse));
    const char* separator = "";
    for (const std::int32_t token : tokens) {
      std::printf("%s%d", std::exchange(separator, ","), token);
    }
    std::printf("\n");
  }
  return kvcache::Status::Ok();
}

kvcache::Status Run(char** argv) {
  KVCACHE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Embedder> embedder,
      Embedder::Open(argv[1], {.threads = std::atoi(argv[2]), .pass_tokens = std::atoi(argv[3])}));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> values, Values(*embedder));
  std::fwrite(values.data(), sizeof(float), values.size(), stdout);
  return kvcache::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && !(argc == 3 && std::string_view(argv[1]) == "pairs")) {
    std::fprintf(stderr, "usage: embeddings_oracle MODEL THREADS PASS_TOKENS\n");
    return 2;
  }
  const kvcache::Status status = argc == 3 ? WritePairs(argv[2]) : Run(argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "embeddings_oracle: %s\n", status.message().c_str());
  return 1;
}
