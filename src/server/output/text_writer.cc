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

// Returns the texts that end an answer: the request's, then the model's.
std::vector<std::string> StopsOf(const TextRequest& request) {
  std::vector<std::string> stops = request.stop;
  stops.insert(stops.end(), request.prompt.stops.begin(), request.prompt.stops.end());
  return stops;
}

}  // namespace

TextWriter::TextWriter(const Tokenizer& tokenizer, TextRequest request)
    : tokenizer_(tokenizer), request_(std::move(request)), text_(tokenizer, StopsOf(request_)) {
  const SharedDialect& dialect = request_.prompt.answer.dialect;
  if (dialect != nullptr) text_.Show(dialect->marker_tokens, kEdge);
  if (request_.prompt.chat) text_.ContinueAfter(request_.prompt.tokens.back());
}

void TextWriter::Started(const ReuseReport& reuse) {
  try {
    if (request_.on_started) request_.on_started(reuse);
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
  if (!logits_.empty()) request_.on_logprob(LogprobOf(token));
  if (request_.on_token) request_.on_token(token);
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
  const auto top =
      std::min(static_cast<std::size_t>(std::max(request_.top_logprobs, 0)), order.size());
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
  const std::vector<std::string>& of_model = request_.prompt.stops;
  const bool is_own = std::find(of_model.begin(), of_model.end(), text_.found()) == of_model.end();
  request_.on_done({.status = std::move(status),
                    .stop = stopped ? StopReason::kStopString : result.stop,
                    .stop_string = is_own ? text_.found() : std::string(),
                    .generated = generated_,
                    .reuse = result.reuse,
                    .difference = std::move(difference),
                    .first_token_ms = result.first_token_ms,
                    .total_ms = result.total_ms});
}

void TextWriter::Emit(const std::string& text) {
  if (!text.empty() && !refused_ && request_.on_text) refused_ = !request_.on_text(text);
}

}  // namespace kvcache::server
