#include "cache/pass/drafts.h"

#include <algorithm>

#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

void Drafts::Reset(int max_batch) {
  Clear();
  parents_.reserve(max_batch);
  sequences_.reserve(max_batch);
  positions_.reserve(max_batch);
  path_of_.reserve(max_batch);
  leaves_.reserve(max_batch);
  path_.reserve(max_batch);
}

void Drafts::Set(const Batch& batch) {
  Clear();
  leaves_.clear();
  path_of_.clear();
  if (batch.parents.empty()) return;
  parents_.assign(batch.parents.begin(), batch.parents.end());
  sequences_.assign(batch.sequences.begin(), batch.sequences.end());
  positions_.assign(batch.positions.begin(), batch.positions.end());
  for (std::int32_t i = 0; i < size(); ++i) {
    const std::int32_t parent = parents_[i];
    // The first child continues its parent's path; every other child starts one.
    if (parent != kNone && leaves_[path_of_[parent]] == parent) {
      path_of_.push_back(path_of_[parent]);
      leaves_[path_of_[i]] = i;
    } else {
      path_of_.push_back(paths());
      leaves_.push_back(i);
    }
  }
}

std::span<const std::int32_t> Drafts::PathTo(std::int32_t token) {
  path_.clear();
  for (; token != kNone; token = parents_[token]) path_.push_back(token);
  std::reverse(path_.begin(), path_.end());
  return path_;
}

Status Drafts::CheckChosen(std::span<const std::int32_t> chosen) const {
  if (empty()) {
    return Invalid("AcceptDrafts outside a pass of drafts; another call may have ended it");
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] < 0 || chosen[i] >= size()) {
      return Invalid(StrCat("draft ", chosen[i], " is not in the batch of ", size()));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (sequence(chosen[j]) != sequence(chosen[i])) continue;
      return Invalid(StrCat("drafts ", chosen[j], " and ", chosen[i], " are both of sequence ",
                            Index(sequence(chosen[i])), "; name only the last token of its path"));
    }
  }
  return Status::Ok();
}

}  // namespace kvcache
