// The sequences of a cache that are in a transaction (kvcache/transaction.h).
//
//   sequence 3   since 120 tokens, 8 more at most
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <span>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/status.h"
#include "kvcache/transaction.h"
#include "kvcache/types.h"

namespace kvcache {

class OpenTransactions {
 public:
  // May throw std::bad_alloc.
  void Reset(int sequences) { of_.assign(sequences, {}); }

  bool any() const { return open_ > 0; }
  bool has(SequenceId id) const { return of_[Index(id)].max_tokens > 0; }
  // Returns the tokens that the sequence had when its transaction began. REQUIRES: has(id).
  Position begin(SequenceId id) const { return of_[Index(id)].begin; }

  // Checks a member that has `length` tokens in this cache, and `members` for one named twice.
  Status CheckBegin(std::span<const SequenceLength> members, std::size_t member,
                    Position length) const;
  void Open(std::span<const SequenceLength> members, Position max_tokens);
  void Close(std::span<const SequenceLength> members);

  // Returns kInvalidArgument if the sequence is in a transaction. REQUIRES: it is known.
  Status CheckChange(SequenceId id) const;
  // Returns kInvalidArgument if a sequence of the batch is in a transaction in which its position must
  // not be written. O(1) while there is no transaction.
  Status CheckWrites(const Batch& batch) const;
  // Returns kInvalidArgument unless the sequence is in a transaction and the length that remains is
  // from its begin to `written`.
  Status CheckCommit(const SequenceLength& kept, Position written) const;

 private:
  struct Entry {
    Position begin = 0;
    Position max_tokens = 0;  // 0: in no transaction
  };
  std::vector<Entry> of_;  // [sequences]
  int open_ = 0;           // sequences in a transaction
};

}  // namespace kvcache
