#include "engine/request/score.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/request/check_logits.h"

namespace kvcache {
namespace {

// The number of tokens whose logits are held at once: a row of 128k entries takes half a megabyte.
constexpr std::int32_t kRows = 16;

double LogSumExp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

// Sums the losses of a pass's logits, a few rows at a time.
class Scorer {
 public:
  Scorer(Engine& engine, std::span<const std::int32_t> tokens, const LogitsSink& sink)
      : engine_(engine),
        tokens_(tokens),
        sink_(sink),
        vocabulary_(static_cast<std::size_t>(engine.vocabulary_size())),
        logits_(kRows * vocabulary_) {}

  // Rows that an earlier pass had are left out.
  Status Pass(Position first, std::int32_t count) {
    const Position scored = std::clamp(scored_ - first, 0, count);
    scored_ = std::max(scored_, first + count);
    for (std::int32_t done = scored; done < count; done += kRows) {
      const std::int32_t rows = std::min(kRows, count - done);
      std::int32_t indices[kRows];
      std::iota(indices, indices + rows, done);
      const std::span all = std::span(logits_).first(static_cast<std::size_t>(rows) * vocabulary_);
      KVCACHE_RETURN_IF_ERROR(
          engine_.Logits(std::span(indices).first(static_cast<std::size_t>(rows)), all.data()));
      for (std::int32_t row = 0; row < rows; ++row) {
        KVCACHE_RETURN_IF_ERROR(AddRow(first + done + row, row));
      }
      if (sink_) KVCACHE_RETURN_IF_ERROR(sink_(all));
    }
    return Status::Ok();
  }

  double nll() const { return nll_; }

 private:
  Status AddRow(Position position, std::int32_t row) {
    const auto logits =
        std::span(logits_).subspan(static_cast<std::size_t>(row) * vocabulary_, vocabulary_);
    KVCACHE_RETURN_IF_ERROR(CheckLogits(engine_, logits, position + 1));
    const auto next = static_cast<std::size_t>(position) + 1;
    if (next >= tokens_.size()) return Status::Ok();
    const double loss =
        LogSumExp(logits) - static_cast<double>(logits[static_cast<std::size_t>(tokens_[next])]);
    if (!std::isfinite(loss)) {
      return Corrupt(StrCat(engine_.file().path(), ": -log p of token ", tokens_[next],
                            " at position ", next,
                            " is not finite: the model's weights are damaged"));
    }
    nll_ += loss;
    return Status::Ok();
  }

  Engine& engine_;
  std::span<const std::int32_t> tokens_;
  const LogitsSink& sink_;
  std::size_t vocabulary_;
  std::vector<float> logits_;
  Position scored_ = 0;  // tokens
  double nll_ = 0.0;
};

}  // namespace

Result<ScoreResult> Score(Session& session, Engine& engine, std::span<const std::int32_t> tokens,
                          const LogitsSink& sink, const std::atomic<bool>* interrupt,
                          const ScoreResume& resume) {
  if (tokens.empty()) return InvalidArgument("there are no tokens to score");
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= engine.vocabulary_size()) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("token ", token, " is not in the vocabulary of ", engine.vocabulary_size()));
    }
  }
  std::vector<std::int32_t> all(session.tokens().begin(), session.tokens().end());
  const bool begun = !all.empty();
  all.insert(all.end(), tokens.begin(), tokens.end());
  if (resume.at != 0 && (resume.at <= std::ssize(session.tokens()) ||
                         static_cast<std::size_t>(resume.at) >= all.size())) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("resuming after ", resume.at, " tokens; must be from ", session.tokens().size() + 1,
               " to ", all.size() - 1, ", before the last token"));
  }
  Scorer scorer(engine, all, sink);
  const auto evaluate = [&](Position end) {
    return session.Append(
        std::span(all).first(static_cast<std::size_t>(end)).subspan(session.tokens().size()),
        [&](Position first, std::int32_t count) { return scorer.Pass(first, count); }, interrupt);
  };
  const auto start = std::chrono::steady_clock::now();
  if (begun) KVCACHE_RETURN_IF_ERROR(scorer.Pass(0, 1));
  if (resume.at > 0) {
    KVCACHE_RETURN_IF_ERROR(evaluate(resume.at));
    KVCACHE_RETURN_IF_ERROR(resume.resume());
  }
  KVCACHE_RETURN_IF_ERROR(evaluate(static_cast<Position>(all.size())));
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  ScoreResult result{.tokens = static_cast<std::int32_t>(all.size()),
                     .nll = scorer.nll(),
                     .perplexity = 0.0,
                     .prefill_ms = elapsed.count()};
  if (all.size() > 1) {
    result.perplexity = std::exp(result.nll / static_cast<double>(all.size() - 1));
  }
  return result;
}

}  // namespace kvcache
