#include "engine/scheduler/pass/pass_runner.h"

#include <algorithm>

#include "base/errors.h"
#include "base/step_parts.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/pictures/axes.h"
#include "engine/request/check_logits.h"
#include "engine/scheduler/pass/step_clock.h"

namespace kvcache {
namespace {

// Returns what ends the pass in the middle: a request that is alone in it, in its prompt. Null: nothing does.
const std::atomic<bool>* Interrupt(const ComposedPass& pass) {
  const PassRows* only = nullptr;
  for (const PassRows& of : pass.rows) {
    if (of.tokens == 0) continue;
    if (only != nullptr) return nullptr;
    only = &of;
  }
  return only != nullptr && only->job->in_prompt ? only->job->request.interrupt : nullptr;
}

}  // namespace

PassRunner::PassRunner(Engine& engine, const std::function<double()>& clock, double& sum)
    : engine_(engine), clock_(clock), sum_(sum) {
  rows_.reserve(static_cast<std::size_t>(std::max(engine.options().max_sequences, 1)));
}

Status PassRunner::Run(ComposedPass& pass) {
  const StepScope scope(StepPart::kKernels);
  seconds_ = 0.0;
  const AddSeconds time(clock_, sum_);
  const AddSeconds last(clock_, seconds_);
  const std::atomic<bool>* const interrupt = Interrupt(pass);
  KVCACHE_RETURN_IF_ERROR(
      pass.encoding != nullptr
          ? engine_.Encode(pass.encoding->request.prompt, pass.encoding->sequence, interrupt)
          : Guarded("no memory for the positions of a pass", [&] {
              return engine_.Forward({.tokens = pass.tokens,
                                      .positions = pass.positions,
                                      .sequences = pass.sequences,
                                      .rows = pass.input_rows,
                                      .axes = AxesOf(pass),
                                      .interrupt = interrupt});
            }));
  KVCACHE_RETURN_IF_ERROR(ReserveLogits(pass));
  return rows_.empty() ? Status::Ok() : engine_.Logits(rows_, logits_.data());
}

std::span<const Position> PassRunner::AxesOf(const ComposedPass& pass) {
  const auto has_pictures = [](const PassRows& of) {
    return of.tokens > 0 && of.job->pictures != nullptr;
  };
  if (!engine_.info().three_axes || std::ranges::none_of(pass.rows, has_pictures)) return {};
  axes_.resize(3 * pass.tokens.size());
  for (const PassRows& of : pass.rows) {
    if (of.tokens == 0) continue;
    const auto first = of.last_row + 1 - static_cast<std::size_t>(of.tokens - of.drafted);
    std::span<const PromptPicture> pictures;
    if (of.job->pictures != nullptr) pictures = of.job->pictures->list;
    WriteAxes(pictures, of.job->length, of.tokens, first, axes_);
  }
  return axes_;
}

Status PassRunner::ReserveLogits(ComposedPass& pass) {
  const StepScope scope(StepPart::kDelivery);
  rows_.clear();
  const auto problem = [&] {
    return StrCat("no memory for the logits of ", rows_.size(), " rows");
  };
  return Guarded(problem, [&] {
    for (PassRows& of : pass.rows) {
      if (of.tokens == 0 || !of.samples) continue;
      of.logits_row = rows_.size();
      for (Position i = 0; i <= of.drafted; ++i) {
        rows_.push_back(static_cast<std::int32_t>(of.last_row) + i);
      }
    }
    const std::size_t values = rows_.size() * static_cast<std::size_t>(engine_.vocabulary_size());
    if (logits_.capacity() < values) {
      logits_ = {};
      logits_.reserve(values);
    }
    if (values > 0) logits_.resize(values);
  });
}

std::span<const float> PassRunner::Logits(const PassRows& of, std::size_t row) const {
  const auto vocabulary = static_cast<std::size_t>(engine_.vocabulary_size());
  return std::span(logits_).subspan((of.logits_row + row) * vocabulary, vocabulary);
}

Status PassRunner::Check(std::span<const float> logits, Position length) const {
  const StepScope scope(StepPart::kKernels);
  return CheckLogits(engine_, logits, length);
}

void PassRunner::AddSecondsOfCommit(double seconds) {
  sum_ += seconds;
  seconds_ += seconds;
}

// The workspace has a row of logits for each sequence; drafts need more.
std::int64_t PassRunner::ExtraBytes(std::size_t rows) const {
  const auto vocabulary = static_cast<std::size_t>(engine_.vocabulary_size());
  const auto max = static_cast<std::size_t>(std::max(engine_.options().max_sequences, 1));
  const std::size_t values = std::max(logits_.capacity(), rows * vocabulary);
  return static_cast<std::int64_t>((values - std::min(values, max * vocabulary)) * sizeof(float));
}

void PassRunner::Release() {
  if (ExtraBytes() > 0) logits_ = {};
}

}  // namespace kvcache
