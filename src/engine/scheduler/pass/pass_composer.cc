#include "engine/scheduler/pass/pass_composer.h"

#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/scheduler/pass/capture_limit.h"
#include "engine/scheduler/pass/prefill_budget.h"

namespace kvcache {
namespace {

// Ends the chunk before a capture that the pass has no state for.
Position LimitCaptures(const Job& job, Position count, int& captures) {
  for (const Position at : job.captures.lengths()) {
    if (at <= job.length) continue;
    if (at > job.length + count) break;
    if (captures == kMaxCapturesPerPass) return at - 1 - job.length;
    ++captures;
  }
  return count;
}

// Ends the chunk before a picture whose rows are not there, and behind one whose cells see each other: it is read as a
// whole. `room`: the tokens that the pass has left.
Position FitPicture(const Job& job, Position count, Position room) {
  if (job.pictures == nullptr) return count;
  const PromptPicture* const next = job.pictures->Next(job.length);
  if (next == nullptr || next->begin >= job.length + count) return count;
  const Position before = std::max<Position>(0, next->begin - job.length);
  const Position behind = next->end() - job.length;
  if (!job.pictures->has_rows_of(*next)) return before;
  if (!next->picture->shape().is_whole) return std::min(count, behind);
  return behind <= room ? behind : before;
}

// Returns the tokens of all requests that generate, with their drafts.
std::size_t DecodeTokens(const ComposedPass& pass) {
  std::size_t tokens = 0;
  for (const PassRows& of : pass.rows) {
    const Job& job = *of.job;
    if (job.in_prompt) continue;
    tokens += 1 + (job.drafts == nullptr ? 0 : job.drafts->proposed.size());
  }
  return tokens;
}

}  // namespace

PassComposer::PassComposer(const Engine& engine, int max_tokens, double step_seconds)
    : engine_(engine), max_tokens_(max_tokens), pace_(step_seconds, max_tokens) {
  prompts_.reserve(static_cast<std::size_t>(std::max(engine.options().max_sequences, 1)));
}

std::size_t PassComposer::PromptShare() const {
  const auto step = static_cast<std::size_t>(max_tokens_);
  const std::size_t min = std::min<std::size_t>(PrefillPace::kMinTokens, step / 2);
  return std::max({std::size_t{1}, min, step / 8});
}

// A token of each request that generates comes first, then prompts.
void PassComposer::Compose(std::span<const JobPtr> live, ComposedPass& pass) {
  pass.Clear(live);
  if (live.empty()) return;
  if (PassRows* const encoding = NextToEncode(pass); encoding != nullptr) {
    pass.encoding = encoding->job;
    pass.Add(*encoding, 1);
    turn_ = (turn_ + 1) % live.size();
    return;
  }
  const Position left = AddDecodes(pass);
  turn_ = (turn_ + 1) % live.size();
  AddPrompts(pass, left);
}

PassRows* PassComposer::NextToEncode(ComposedPass& pass) const {
  const auto waits = [&](const PassRows& of) { return WaitsForEncoder(engine_, *of.job); };
  const auto next = std::find_if(pass.rows.begin(), pass.rows.end(), [&](const PassRows& of) {
    return waits(of) && !of.job->store.is_loading();
  });
  if (next == pass.rows.end()) return nullptr;
  const bool any_decodes = !std::all_of(pass.rows.begin(), pass.rows.end(), waits);
  return any_decodes && turn_ % 2 == 1 ? nullptr : &*next;
}

Position PassComposer::NextPicture(const ComposedPass& pass) const {
  Position most = 0;
  for (const PassRows& of : pass.rows) {
    const Job& job = *of.job;
    if (job.pictures == nullptr || !ReadsPrompt(engine_, job)) continue;
    const PromptPicture* const next = job.pictures->Next(job.length);
    const bool is_next = next != nullptr && next->begin == job.length &&
                         next->picture->shape().is_whole && job.pictures->has_rows_of(*next);
    if (is_next) most = std::max(most, next->picture->cells());
  }
  return most;
}

Position PassComposer::AddDecodes(ComposedPass& pass) const {
  std::size_t left = static_cast<std::size_t>(max_tokens_);
  const std::size_t count = pass.rows.size();
  const bool any_prompt =
      std::any_of(pass.rows.begin(), pass.rows.end(),
                  [this](const PassRows& of) { return ReadsPrompt(engine_, *of.job); });
  // If a step is one token, all take turns.
  const std::size_t for_picture = any_prompt ? static_cast<std::size_t>(NextPicture(pass)) : 0;
  const std::size_t for_prompts = any_prompt ? std::max(PromptShare(), for_picture) : 0;
  const std::size_t all = for_picture > 0 ? left : 1;
  const std::size_t min = for_prompts < left ? for_prompts : turn_ % 2 * all;
  // If the step has room for all, they keep their order: batches in the order of sequences need no sorting.
  const std::size_t first = DecodeTokens(pass) + min <= left ? 0 : turn_;
  for (std::size_t i = 0; i < count && left > min; ++i) {
    PassRows& of = pass.rows[(first + i) % count];
    if (of.job->in_prompt) continue;
    pass.Add(of, 1);
    pass.AddDrafts(of);
    left -= static_cast<std::size_t>(of.tokens);
  }
  return static_cast<Position>(left);
}

// The prompt with the fewest tokens left goes first. So that a long one continues however many short ones come, the one
// that arrived first begins each fourth pass.
void PassComposer::OrderPrompts(ComposedPass& pass) {
  prompts_.clear();
  for (PassRows& of : pass.rows) {
    if (ReadsPrompt(engine_, *of.job)) prompts_.push_back(&of);
  }
  std::sort(prompts_.begin(), prompts_.end(), [](const PassRows* a, const PassRows* b) {
    return std::pair(a->job->pending(), a->job->id) < std::pair(b->job->pending(), b->job->id);
  });
  if (!pace_.BeginsWithOldest()) return;
  const auto oldest = std::min_element(
      prompts_.begin(), prompts_.end(),
      [](const PassRows* a, const PassRows* b) { return a->job->id < b->job->id; });
  if (oldest != prompts_.end()) std::rotate(prompts_.begin(), oldest, oldest + 1);
}

void PassComposer::AddPrompts(ComposedPass& pass, Position room) {
  const int rows = static_cast<int>(pass.tokens.size());
  if (pace_.MeasuresRows(rows)) return;
  OrderPrompts(pass);
  PrefillBudget budget(pace_, room, rows);
  int captures = 0;
  for (PassRows* const of : prompts_) {
    const Job& job = *of->job;
    const Position left = job.pending();
    const Position most = FitPicture(job, budget.Offer(job.length, left), room);
    Position tokens = LimitCaptures(job, most, captures);
    if (tokens < most) tokens = FitWhole(job, tokens);
    if (tokens < 1) continue;
    room -= tokens;
    budget.Take(job.length, left, tokens);
    pass.Add(*of, tokens);
  }
}

void PassComposer::CountPass(const ComposedPass& pass, const PrefillWork& work, double seconds) {
  pace_.Count(static_cast<int>(pass.tokens.size()) - work.tokens(), work, seconds);
}

}  // namespace kvcache
