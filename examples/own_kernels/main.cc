// A complete tiny transformer with its own kernels, on the library alone.
//
// tiny_backend.* has the kernels, tiny_model.* the model. The program generates a text greedily,
// forks it, goes back to a position that both kinds of layer allow, and compares with the same
// tokens evaluated from the start. A formula makes the weights, so the text is meaningless.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tiny_model.h"

namespace {

using example::TinyModel;
using kvcache::Cache;
using kvcache::Position;
using kvcache::Result;
using kvcache::SequenceId;
using kvcache::Status;
using kvcache::StatusCode;

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr SequenceId kCheck{2};

// Returns the most likely printable character.
char Best(const std::vector<float>& logits) {
  return static_cast<char>(std::max_element(logits.begin() + ' ', logits.begin() + '~') -
                           logits.begin());
}

// Appends `count` tokens to `text`. The sequence holds `text` without its last token.
Status Generate(TinyModel& model, Cache& cache, SequenceId sequence, int count, std::string& text) {
  for (int i = 0; i < count; ++i) {
    const auto position = static_cast<Position>(text.size()) - 1;
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> logits,
                             model.Forward(cache, sequence, position, text.substr(position)));
    text += Best(logits);
  }
  return Status::Ok();
}

// Returns the largest difference between the next token's logits and those of the same tokens
// evaluated from the start. These kernels do not fix the order of their sums, so it is small, not
// zero.
Result<float> DistanceFromScratch(TinyModel& model, Cache& cache, SequenceId sequence,
                                  const std::string& text) {
  const auto last = static_cast<Position>(text.size()) - 1;
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> cached,
                           model.Forward(cache, sequence, last, text.substr(last)));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> fresh, model.Forward(cache, kCheck, 0, text));
  KVCACHE_RETURN_IF_ERROR(cache.Remove(kCheck, 0, kvcache::kEndOfSequence));
  float largest = 0.0f;
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    largest = std::max(largest, std::abs(cached[i] - fresh[i]));
  }
  return largest;
}

Status Run() {
  TinyModel model;
  const auto cache = model.MakeCache();
  KVCACHE_RETURN_IF_ERROR(cache->Init(model.backend(), {.k_type = kvcache::DType::kF32,
                                                        .v_type = kvcache::DType::kF32,
                                                        .max_sequences = 3,
                                                        .capacity = 256,
                                                        .max_batch = 128}));
  std::string text = "Once upon a time there was a cache that ";
  KVCACHE_ASSIGN_OR_RETURN(const auto prompt, model.Forward(*cache, kFirst, 0, text));
  text += Best(prompt);
  KVCACHE_RETURN_IF_ERROR(Generate(model, *cache, kFirst, 24, text));
  std::printf("first   %s\n", text.c_str());
  std::printf("bytes held: %lld\n", static_cast<long long>(cache->memory()->AllocatedBytes()));

  // Fork near the end of the prompt. Earlier positions need tokens that the windows have evicted.
  const auto length = static_cast<Position>(text.size()) - 1;
  KVCACHE_RETURN_IF_ERROR(cache->CopyPrefix(kFirst, kSecond, length));
  KVCACHE_ASSIGN_OR_RETURN(const Position kept, cache->PrepareRestore(kSecond, length - 1));
  KVCACHE_ASSIGN_OR_RETURN(const Position early, cache->PrepareRestore(kSecond, 10));
  std::printf("can go back to %d of %d tokens; to 10: %d\n", kept, length, early);
  KVCACHE_RETURN_IF_ERROR(cache->Remove(kSecond, kept, kvcache::kEndOfSequence));
  std::string other = text.substr(0, static_cast<std::size_t>(kept)) + "!";
  KVCACHE_RETURN_IF_ERROR(Generate(model, *cache, kSecond, 16, other));
  std::printf("second  %s\n", other.c_str());

  KVCACHE_ASSIGN_OR_RETURN(const float first, DistanceFromScratch(model, *cache, kFirst, text));
  KVCACHE_ASSIGN_OR_RETURN(const float second, DistanceFromScratch(model, *cache, kSecond, other));
  std::printf("largest difference from the tokens from scratch: %.1e, %.1e\n", first, second);
  if (!(first < 1e-4f) || !(second < 1e-4f)) {
    return {StatusCode::kInternal, "the logits differ from those of the tokens from scratch"};
  }
  return Status::Ok();
}

}  // namespace

int main() {
  const Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "own_kernels: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
