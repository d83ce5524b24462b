#include "engine/scheduler/pass/composed_pass.h"

#include <algorithm>
#include <utility>

namespace kvcache {

void ComposedPass::Reserve(std::size_t max_tokens, std::size_t max_requests) {
  tokens.reserve(max_tokens);
  positions.reserve(max_tokens);
  sequences.reserve(max_tokens);
  rows.reserve(max_requests);
  input_rows.reserve(max_requests);
}

bool ComposedPass::has_drafts() const {
  return std::any_of(rows.begin(), rows.end(), [](const PassRows& of) { return of.drafted > 0; });
}

void ComposedPass::Clear(std::span<const JobPtr> live) {
  RemoveTokens();
  encoding = nullptr;
  rows.clear();
  for (const JobPtr& job : live) rows.push_back({.job = job.get()});
}

void ComposedPass::Add(PassRows& of, Position count) {
  const Job& job = *of.job;
  if (job.pictures != nullptr) AddInputRows(job, count);
  of.tokens = count;
  of.samples = count == job.pending() && !job.is_complete();
  of.reads_prompt = job.in_prompt && encoding == nullptr;
  for (Position i = 0; i < count; ++i) {
    tokens.push_back(job.tokens[static_cast<std::size_t>(job.length + i)]);
    positions.push_back(job.length + i);
    sequences.push_back(job.sequence);
  }
  of.last_row = tokens.size() - 1;
}

// A pass has at most one picture of a request.
void ComposedPass::AddInputRows(const Job& job, Position count) {
  const PromptPicture* const picture = job.pictures->Next(job.length);
  const Position end = job.length + count;
  if (picture == nullptr || picture->begin >= end) return;
  const Position first = std::max(picture->begin, job.length);
  input_rows.push_back({.index = static_cast<std::int32_t>(tokens.size()) + first - job.length,
                        .count = std::min(picture->end(), end) - first,
                        .values = job.pictures->rows->Row(first - picture->begin),
                        .see_each_other = picture->picture->shape().is_whole});
}

void ComposedPass::AddDrafts(PassRows& of) {
  const Job& job = *of.job;
  if (job.drafts == nullptr) return;
  Position at = job.length + of.tokens;
  for (const std::int32_t draft : job.drafts->proposed) {
    tokens.push_back(draft);
    positions.push_back(at++);
    sequences.push_back(job.sequence);
  }
  of.drafted = static_cast<Position>(job.drafts->proposed.size());
  of.tokens += of.drafted;
}

// Without drafts there is room for the other tokens, and for no more.
void ComposedPass::RemoveDrafts() {
  RemoveTokens();
  for (PassRows& of : rows) {
    if (of.job->drafts != nullptr) of.job->drafts->proposed.clear();
    if (of.tokens > 0) Add(of, of.tokens - std::exchange(of.drafted, 0));
  }
}

void ComposedPass::RemoveTokens() {
  tokens.clear();
  positions.clear();
  input_rows.clear();
  sequences.clear();
}

}  // namespace kvcache
