// embeddings_oracle: writes the vectors of token lists, or the scores of pairs, for compare.py.
//
// Usage: embeddings_oracle MODEL THREADS PASS_TOKENS < INPUTS > VECTORS
//   INPUTS    one input a line: 1,52,7
//   VECTORS   f32, one vector after another, not normalized; a score for each input of a reranker
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "kvcache_engine/embedder.h"

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
  if (argc != 4) {
    std::fprintf(stderr, "usage: embeddings_oracle MODEL THREADS PASS_TOKENS\n");
    return 2;
  }
  const kvcache::Status status = Run(argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "embeddings_oracle: %s\n", status.message().c_str());
  return 1;
}
