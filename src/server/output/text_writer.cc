#include "server/output/text_writer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <numeric>
#include <utility>

namespace kvcache::server {
namespace {

// Returns the logarithm of the sum of the logits' exponentials.
double LogSum(std::span<const float> logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum);
}

std::vector<std::string> Joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TextWriter::TextWriter(const Tokenizer& tokenizer, TextRequest request)
    : tokenizer_(tokenizer),
      on_started_(std::move(request.on_started)),
      on_logprob_(std::move(request.on_logprob)),
      top_logprobs_(static_cast<std::size_t>(std::max(request.top_logprobs, 0))),
      on_token_(std::move(request.on_token)),
      on_text_(std::move(request.on_text)),
      on_done_(std::move(request.on_done)),
      model_stops_(request.prompt.stops),
      text_(tokenizer, Joined(std::move(request.stop), model_stops_)) {
  if (request.prompt.chat) text_.ContinueAfter(request.prompt.tokens.back());
}

void TextWriter::Started(const ReuseReport& reuse) {
  try {
    if (on_started_) on_started_(reuse);
  } catch (const std::exception&) {
    failed_ = true;
  }
}

void TextWriter::TakeLogits(std::span<const float> logits) {
  try {
    logits_.assign(logits.begin(), logits.end());
  } catch (const std::exception&) {
    failed_ = true;
  }
}

bool TextWriter::Push(std::int32_t token) {
  if (failed_) return false;
  try {
    return Take(token);
  } catch (const std::exception&) {
    failed_ = true;
    return false;
  }
}

void TextWriter::Finish(const RequestResult& result, PromptDifference difference,
                        const Status& interrupted) {
  try {
    const bool cancelled = result.stop == StopReason::kInterrupted && !refused_;
    Deliver(result, std::move(difference),
            cancelled && result.status.ok() ? interrupted : result.status);
  } catch (const std::exception&) {
    return;
  }
}

bool TextWriter::Take(std::int32_t token) {
  if (!logits_.empty()) on_logprob_(LogprobOf(token));
  if (on_token_) on_token_(token);
  ++generated_;
  Emit(text_.Push(token));
  return !text_.stopped() && !refused_;
}

TokenLogprob TextWriter::LogprobOf(std::int32_t token) const {
  const double sum = LogSum(logits_);
  const auto logprob = [&](std::size_t index) {
    return static_cast<float>(static_cast<double>(logits_[index]) - sum);
  };
  const auto text = [&](std::size_t index) {
    return tokenizer_.Piece(static_cast<std::int32_t>(index), ControlText::kShown);
  };
  const auto own = static_cast<std::size_t>(token);
  TokenLogprob result{.text = text(own), .logprob = logprob(own), .token = token};
  std::vector<std::size_t> order(logits_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t top = std::min(top_logprobs_, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return std::pair(logits_[b], a) < std::pair(logits_[a], b);
                    });
  for (std::size_t i = 0; i < top; ++i) {
    result.top.emplace_back(text(order[i]), logprob(order[i]));
    result.top_tokens.push_back(static_cast<std::int32_t>(order[i]));
  }
  return result;
}

void TextWriter::Deliver(const RequestResult& result, PromptDifference difference, Status status) {
  if (failed_) status = {StatusCode::kOutOfMemory, "no memory for the text of an answer"};
  if (!refused_ && status.ok()) Emit(text_.Finish());
  const bool stopped = text_.stopped() || refused_;
  on_done_({.status = std::move(status),
            .stop = stopped ? StopReason::kStopString : result.stop,
            .stop_string = IsOfModel(text_.found()) ? std::string() : text_.found(),
            .generated = generated_,
            .reuse = result.reuse,
            .difference = std::move(difference),
            .first_token_ms = result.first_token_ms,
            .total_ms = result.total_ms});
}

bool TextWriter::IsOfModel(const std::string& stop) const {
  return std::find(model_stops_.begin(), model_stops_.end(), stop) != model_stops_.end();
}
void TextWriter::Emit(const std::string& text) {
  if (!text.empty() && !refused_ && on_text_) refused_ = !on_text_(text);
}

}  // namespace kvcache::server
