// The sequences of a reference model that are in a transaction, by definition.
//
// Thread safety: none.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/transaction.h"
#include "support/cache_harness.h"

namespace kvcache::testing {

class ReferenceTransactions {
 public:
  explicit ReferenceTransactions(int sequences) : sequences_(sequences) {}

  bool Has(int sequence) const { return open_.count(sequence) != 0; }
  Position begin(int sequence) const { return open_.at(sequence).begin; }
  bool MayWrite(const TestToken& token) const {
    const auto found = open_.find(token.sequence);
    if (found == open_.end()) return true;
    const auto [begin, max_tokens] = found->second;
    return token.position >= begin && token.position < begin + max_tokens;
  }

  // `length_of(sequence)` is the number of tokens of a sequence.
  template <class LengthOf>
  StatusCode CheckBegin(const std::vector<SequenceLength>& members, Position max_tokens,
                        const LengthOf& length_of) const {
    std::set<int> named;
    bool good = max_tokens >= 1;
    for (const auto& [id, length] : members) {
      const int sequence = Index(id);
      good = good && sequence >= 0 && sequence < sequences_ && named.insert(sequence).second &&
             !Has(sequence) && length >= length_of(sequence);
    }
    return good ? StatusCode::kOk : StatusCode::kInvalidArgument;
  }
  template <class LengthOf>
  StatusCode CheckCommit(const std::vector<SequenceLength>& kept, const LengthOf& length_of) const {
    for (const auto& [id, length] : kept) {
      const Position first = begin(Index(id));
      if (length > first && length > length_of(Index(id))) return StatusCode::kInvalidArgument;
    }
    return StatusCode::kOk;
  }
  void Begin(const std::vector<SequenceLength>& members, Position max_tokens) {
    for (const auto& [id, length] : members) open_[Index(id)] = {length, max_tokens};
  }
  void End(const std::vector<SequenceLength>& members) {
    for (const auto& [id, length] : members) open_.erase(Index(id));
  }

 private:
  struct Open {
    Position begin = 0;
    Position max_tokens = 0;
  };
  int sequences_;
  std::map<int, Open> open_;
};

}  // namespace kvcache::testing
