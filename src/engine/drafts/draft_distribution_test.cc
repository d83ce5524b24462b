// The tokens of rounds with drafts have the model's distribution: Pearson's test over many rounds, for
// chains from drafters that are good, bad and random. The same test finds wrong rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvcache_engine/sampling.h"
#include "speculation/verify_drafts.h"
#include "support/drafts/chi_square.h"

namespace kvcache::draft_distribution_test {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kVocabulary = 6;
constexpr int kLength = 3;  // tokens of a counted text
constexpr int kOutcomes = kVocabulary * kVocabulary * kVocabulary;
constexpr int kTexts = 100'000;  // of three draws each
// A right rule exceeds this once in a million tests.
constexpr double kBound = 4.75;

// Logits that depend on the last two tokens.
class Model {
 public:
  explicit Model(unsigned seed) {
    std::mt19937 random(seed);
    for (float& logit : logits_) logit = static_cast<float>(random() % 400) / 100.0f;
  }
  std::span<const float> After(const Tokens& text) const {
    const auto last = static_cast<std::size_t>(text[text.size() - 1]);
    const auto before = static_cast<std::size_t>(text[text.size() - 2]);
    return std::span(logits_).subspan((before * kVocabulary + last) * kVocabulary, kVocabulary);
  }

 private:
  std::array<float, kOutcomes> logits_{};
};

// Proposes a chain of tokens, the likeliest of `model` or random ones.
struct Proposal {
  int max = 4;
  const Model* model = nullptr;  // null: random tokens

  Tokens Drafts(Tokens text, std::mt19937& random) const {
    Tokens drafts;
    while (static_cast<int>(drafts.size()) < max) {
      std::int32_t token = static_cast<std::int32_t>(random() % kVocabulary);
      if (model != nullptr) {
        const auto logits = model->After(text);
        token = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                          logits.begin());
      }
      drafts.push_back(token);
      text.push_back(token);
    }
    return drafts;
  }
};

// Draws a token for the text. `draft` is one that is proposed there, or -1.
using Rule = std::function<std::int32_t(Sampler&, std::span<const float>, const Tokens&,
                                        std::int32_t draft)>;

std::int32_t RightRule(Sampler& sampler, std::span<const float> logits, const Tokens& text,
                       std::int32_t /*draft*/) {
  return sampler.Sample(logits, text);
}

class DraftDistribution : public ::testing::Test {
 protected:
  // Returns how far the counts of texts are from the model's probabilities.
  double Excess(const SamplingParams& params, const Proposal& proposal, const Rule& rule) {
    std::mt19937 random(11);
    Sampler sampler(params);
    std::vector<std::int64_t> counts(kOutcomes);
    std::int64_t accepted = 0;
    for (int i = 0; i < kTexts; ++i) {
      Tokens text = start_;
      while (text.size() < start_.size() + kLength) {
        const Tokens drafts = proposal.Drafts(text, random);
        const VerifiedDrafts verified = VerifyDrafts(drafts, [&](std::size_t row) -> DrawnToken {
          const std::int32_t draft = row < drafts.size() ? drafts[row] : -1;
          const std::int32_t token = rule(sampler, model_.After(text), text, draft);
          text.push_back(token);
          return {.token = token, .continues = text.size() < start_.size() + kLength};
        });
        accepted += verified.accepted;
      }
      std::size_t outcome = 0;
      for (std::size_t at = start_.size(); at < text.size(); ++at) {
        outcome = outcome * kVocabulary + static_cast<std::size_t>(text[at]);
      }
      ++counts[outcome];
    }
    EXPECT_GT(accepted, kTexts / 10);
    return testing::ChiSquareExcess(counts, Probabilities(params));
  }

  std::vector<double> Probabilities(const SamplingParams& params) {
    Sampler sampler(params);
    std::vector<double> probabilities(kOutcomes);
    Multiply(sampler, start_, 1.0, 0, probabilities);
    return probabilities;
  }
  void Multiply(Sampler& sampler, const Tokens& text, double before, std::size_t outcome,
                std::vector<double>& probabilities) {
    if (text.size() == start_.size() + kLength) {
      probabilities[outcome] += before;
      return;
    }
    const auto next = sampler.Distribution(model_.After(text), text);
    const std::vector<Candidate> candidates(next.begin(), next.end());
    for (const Candidate& candidate : candidates) {
      Tokens longer = text;
      longer.push_back(candidate.token);
      Multiply(sampler, longer, before * static_cast<double>(candidate.probability),
               outcome * kVocabulary + static_cast<std::size_t>(candidate.token), probabilities);
    }
  }
  const Model model_{1};
  const Model other_{2};
  const Tokens start_ = {2, 4};
  const std::vector<Proposal> proposals_ = {{.max = 4, .model = &model_},
                                            {.max = 4, .model = &other_},
                                            {.max = 3},
                                            {.max = 2, .model = &model_}};
  const std::vector<SamplingParams> samplers_ = {
      {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f},
      {.temperature = 0.8f, .top_k = 4, .top_p = 0.95f, .min_p = 0.05f},
      {.temperature = 1.3f,
       .top_k = 0,
       .top_p = 0.9f,
       .min_p = 0.02f,
       .repeat_penalty = 1.3f,
       .presence_penalty = 0.4f,
       .frequency_penalty = 0.3f}};
};

TEST_F(DraftDistribution, IsTheModels) {
  for (std::size_t s = 0; s < samplers_.size(); ++s) {
    for (std::size_t p = 0; p < proposals_.size(); ++p) {
      EXPECT_LT(Excess(samplers_[s], proposals_[p], RightRule), kBound)
          << "sampler " << s << ", proposal " << p;
    }
  }
}

// A draft that is not drawn gets a second draw now and then.
TEST_F(DraftDistribution, FindsASecondChance) {
  int draws = 0;
  const Rule rule = [&](Sampler& sampler, std::span<const float> logits, const Tokens& text,
                        std::int32_t draft) {
    const std::int32_t token = sampler.Sample(logits, text);
    return token != draft && ++draws % 8 == 0 ? sampler.Sample(logits, text) : token;
  };
  EXPECT_GT(Excess(samplers_[0], proposals_[0], rule), 2 * kBound);
  EXPECT_GT(Excess(samplers_[0], proposals_[3], rule), 2 * kBound);
}

// A draft is accepted with its probability, and after a rejection the draw is from all tokens again, the
// draft included: what remains of p is not normalised without it.
TEST_F(DraftDistribution, FindsARejectionThatForgetsTheDraft) {
  std::mt19937 random(5);
  const Rule rule = [&](Sampler& sampler, std::span<const float> logits, const Tokens& text,
                        std::int32_t draft) {
    for (const Candidate& candidate : sampler.Distribution(logits, text)) {
      if (candidate.token != draft) continue;
      if (static_cast<double>(random()) * 0x1p-32 < static_cast<double>(candidate.probability)) {
        return draft;
      }
    }
    return sampler.Sample(logits, text);
  };
  for (const Proposal& proposal : proposals_) {
    if (proposal.model == nullptr) continue;  // drafts of any token alike leave the distribution
    EXPECT_GT(Excess(samplers_[0], proposal, rule), 2 * kBound);
  }
}

// Penalties that do not see the drafts before.
TEST_F(DraftDistribution, FindsPenaltiesThatDoNotSeeTheDraft) {
  const Rule rule = [&](Sampler& sampler, std::span<const float> logits, const Tokens& text,
                        std::int32_t /*draft*/) {
    return sampler.Sample(logits, Tokens(text.begin(), text.begin() + 2));
  };
  EXPECT_GT(Excess(samplers_[2], proposals_[0], rule), 2 * kBound);
  EXPECT_GT(Excess(samplers_[2], proposals_[3], rule), 2 * kBound);
}

}  // namespace
}  // namespace kvcache::draft_distribution_test
