// An embedder whose vectors are easy to say, for tests of what is around it. A token is a byte of the text.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "kvcache_engine/embedder.h"

namespace kvcache::server {

class SimpleEmbedder final : public Embedder {
 public:
  static constexpr int kMaxTokens = 16;

  explicit SimpleEmbedder(bool is_reranker = false) {
    info_.architecture = "simple";
    info_.dimensions = is_reranker ? 0 : 4;
    info_.max_input_tokens = kMaxTokens;
    info_.is_reranker = is_reranker;
    info_.vocabulary_size = 256;
  }

  const EmbedderInfo& info() const override { return info_; }
  std::span<const AdapterInfo> adapters() const override { return known_adapters; }

  Result<std::vector<std::int32_t>> EncodeInput(std::string_view text,
                                                LongInput when_long) const override {
    if (text.size() > kMaxTokens && when_long == LongInput::kRefuse) {
      return InvalidArgument(StrCat("it has ", text.size(), " tokens; at most 16"));
    }
    text = text.substr(0, kMaxTokens);
    return std::vector<std::int32_t>(text.begin(), text.end());
  }
  Result<std::vector<std::int32_t>> EncodePair(std::string_view query, std::string_view document,
                                               LongInput when_long) const override {
    if (!info_.is_reranker) return Unsupported("it is no reranker");
    return EncodeInput(StrCat(query, "|", document), when_long);
  }

  // 1 is the special token in front.
  Result<std::vector<std::int32_t>> Tokenize(std::string_view text,
                                             bool with_special) const override {
    std::vector<std::int32_t> tokens(with_special ? 1 : 0, 1);
    tokens.insert(tokens.end(), text.begin(), text.end());
    return tokens;
  }
  Result<std::string> Detokenize(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) {
      if (token >= info_.vocabulary_size) return InvalidArgument("no such token");
      if (token != 1) text += static_cast<char>(token);
    }
    return text;
  }
  std::string Piece(std::int32_t token) const override {
    return token == 1 ? "<s>" : std::string(1, static_cast<char>(token));
  }

  // A vector is the number of tokens, the first, the last and their sum with the scales of the call's adapters.
  Result<Embeddings> Embed(std::span<const std::vector<std::int32_t>> inputs,
                           const EmbedOptions& options) override {
    if (info_.is_reranker) return Unsupported("it is a reranker");
    KVCACHE_RETURN_IF_ERROR(Work(inputs, options));
    const int size = options.dimensions == 0 ? info_.dimensions : options.dimensions;
    Embeddings result;
    result.dimensions = size;
    result.vectors.assign(inputs.size(), 1);
    for (const auto& input : inputs) {
      std::vector<float> vector = {static_cast<float>(input.size()),
                                   static_cast<float>(input.front()),
                                   static_cast<float>(input.back()), 0.0f};
      for (const std::int32_t token : input) vector[3] += static_cast<float>(token);
      vector[3] += SumOf(options.adapters);
      vector.resize(static_cast<std::size_t>(size));
      float length = 0.0f;
      for (const float value : vector) length += value * value;
      for (float& value : vector) value = options.normalize ? value / std::sqrt(length) : value;
      result.values.insert(result.values.end(), vector.begin(), vector.end());
      result.tokens += std::ssize(input);
    }
    result.reused_tokens = reused_;
    return result;
  }

  // A score is the number of tokens with the same scales.
  Result<Ranks> Rank(std::span<const std::vector<std::int32_t>> pairs,
                     const EmbedOptions& options) override {
    KVCACHE_RETURN_IF_ERROR(Work(pairs, options));
    Ranks ranks;
    for (const auto& pair : pairs) {
      ranks.scores.push_back(static_cast<float>(pair.size()) + SumOf(options.adapters));
      ranks.tokens += std::ssize(pair);
    }
    ranks.reused_tokens = reused_;
    return ranks;
  }

  std::int64_t MemoryBytes() const override { return 1000; }

  std::atomic<bool> waits{false};    // calls wait until they are interrupted, or this is false
  std::atomic<int> microseconds{0};  // that each input takes
  std::atomic<int> calls{0};
  std::vector<AdapterInfo> known_adapters{};
  std::atomic<int> interrupted{0};
  // If it is not empty, equal inputs are computed once. It gets the number of tokens of each input that is computed,
  // which is a pass.
  std::function<void(std::int64_t)> computes{};

 private:
  static float SumOf(AdapterUses uses) {
    float sum = 0.0f;
    for (const AdapterUse& use : uses) sum += use.scale;
    return sum;
  }

  Status Work(std::span<const std::vector<std::int32_t>> inputs, const EmbedOptions& options) {
    ++calls;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].empty()) continue;
      return InvalidArgument(StrCat("input ", options.first_input + i, " has no tokens"));
    }
    reused_ = 0;
    if (computes) ComputeDistinct(inputs, options);
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds * std::ssize(inputs)));
    while (waits) {
      if (options.interrupt != nullptr && *options.interrupt) {
        ++interrupted;
        return {StatusCode::kCancelled, "interrupted"};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return Status::Ok();
  }

  void ComputeDistinct(std::span<const std::vector<std::int32_t>> inputs,
                       const EmbedOptions& options) {
    std::set<std::vector<std::int32_t>> known;
    for (const auto& input : inputs) {
      if (!known.insert(input).second) {
        reused_ += std::ssize(input);
        continue;
      }
      if (known.size() > 1 && options.between_passes) options.between_passes();
      computes(std::ssize(input));
    }
  }

  EmbedderInfo info_;
  std::int64_t reused_ = 0;  // of the last call
};

}  // namespace kvcache::server
