// The drafts of a pass: trees of tokens that follow the end of a sequence or each other. A sequence
// keeps the path that AcceptDrafts names and no other draft.
//
//   history … 7 ─ 8a ─ 9a ─ 10a        parents  -1  -1   0   1   0   2
//               │    └ 9c              tokens   8a  8b  9a  9b  9c 10a
//               └ 8b ─ 9b              paths    8a 9a 10a,  8b 9b,  8a 9c
//
// A path goes from the end of a history to a leaf. Several paths may contain a token; path_of() is
// the first of them.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache {

class Drafts {
 public:
  static constexpr std::int32_t kNone = -1;

  // May throw std::bad_alloc.
  void Reset(int max_batch);

  // Takes the batch's tokens; none if it has no parents. REQUIRES: CheckBatch accepted the batch.
  void Set(const Batch& batch);
  void Clear() { parents_.clear(); }

  bool empty() const { return parents_.empty(); }
  std::int32_t size() const { return static_cast<std::int32_t>(parents_.size()); }
  std::int32_t parent(std::int32_t token) const { return parents_[token]; }
  SequenceId sequence(std::int32_t token) const { return sequences_[token]; }
  Position position(std::int32_t token) const { return positions_[token]; }

  std::int32_t paths() const { return static_cast<std::int32_t>(leaves_.size()); }
  std::int32_t leaf(std::int32_t path) const { return leaves_[path]; }
  std::int32_t path_of(std::int32_t token) const { return path_of_[token]; }

  // Returns the tokens from the history's end to `token`, inclusive; valid until the next call.
  std::span<const std::int32_t> PathTo(std::int32_t token);

  // Returns the kInvalidArgument errors of Cache::AcceptDrafts. O(chosen²).
  Status CheckChosen(std::span<const std::int32_t> chosen) const;

 private:
  std::vector<std::int32_t> parents_;  // [batch]
  std::vector<SequenceId> sequences_;  // [batch]
  std::vector<Position> positions_;    // [batch]
  std::vector<std::int32_t> path_of_;  // [batch]
  std::vector<std::int32_t> leaves_;   // [paths]
  std::vector<std::int32_t> path_;     // result of PathTo
};

}  // namespace kvcache
