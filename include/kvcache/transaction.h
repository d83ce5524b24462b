// Passes whose tokens are kept or given back together, in several caches and sequences.
//
//   const SequenceLength members[] = {{sequence, 120}};                  it has 120 tokens now
//   auto round = Transaction::Begin(caches, members, {.max_tokens = 8});
//   … a pass writes positions 120 to 127, and attends to them as always …
//   round->Commit({3});                          the sequence has 123 tokens, as if only 3 had been
//                                                written
//
// Without a Commit, and after a pass that failed, the destructor rolls back: every sequence is as it
// was before Begin. Commit and RollBack cost the same for any length of history. No byte of K, V or of
// a state moves, because a pass never writes to the cells of earlier tokens.
//
// While a sequence is in a transaction:
//   - passes write it at positions from its length on, max_tokens at most;
//   - AcceptDrafts, snapshots, captures, and copies to other sequences work as always. Captures above
//     the length that remains are taken back, as by a truncation;
//   - windows evict nothing of it. Only if too few cells are free, Begin evicts first what a pass at
//     this length would evict, of all sequences;
//   - any other change of it is refused with kInvalidArgument: Remove, Restore, CopyPrefix to it, a
//     second transaction, an encoder's output (kUnsupported).
//
// Begin counts cells and reserves none. Passes of other sequences may take them, and passes of a
// window's transaction take cells that others could have had: such a pass is kCacheFull.
//
// Recurrent layers keep the state after each pass of a sequence, at most max_batch + 8 × max_sequences
// of them in all open transactions (then a pass is kCacheFull). A pass of several tokens of a sequence
// also keeps their inputs, as a pass of drafts does, and Commit computes the states of the kept tokens
// again. There is one place for inputs. So a commit may end after any pass or accepted path, and in
// the middle of the last pass if no later pass, of any sequences, has kept inputs. Otherwise it is
// kUnsupported, and the transaction can be committed at other lengths.
//
// Ownership: the caches must outlive the transaction, or be closed. A wrapper stands for its inner
// caches: do not name both.
// Thread safety: that of its caches.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

class Cache;

struct TransactionOptions {
  Position max_tokens = 1;  // that passes may write of each sequence
  // For a look ahead, or for checking: the transaction can only be rolled back.
  bool isolated = false;
};

// A cache's calls for transactions, which Transaction makes: Cache::transactions(). `members` are the
// sequences and the length that each has when the transaction begins; `kept` has the length that remains
// of each.
class CacheTransactions {
 public:
  virtual ~CacheTransactions() = default;

  // Begins a transaction and ends the pass in progress. Errors that change nothing: as for
  // Transaction::Begin.
  virtual Status Begin(std::span<const SequenceLength> members, Position max_tokens) = 0;
  // Returns the kInvalidArgument and kUnsupported errors of Transaction::Commit, or Ok. REQUIRES: the
  // sequences are known.
  virtual Status CheckCommit(std::span<const SequenceLength> kept) const = 0;
  // Ends the transaction of these sequences, and the pass in progress. After an error only RollBack may
  // follow. REQUIRES: CheckCommit(kept) returned Ok.
  virtual Status Commit(std::span<const SequenceLength> kept) = 0;
  // Gives back what was written and ends the pass in progress. Cannot fail. Does nothing for a sequence
  // that is in no transaction.
  virtual void RollBack(std::span<const SequenceLength> members) = 0;
};

class Transaction {
 public:
  // Begins a transaction over these sequences of all caches. Ends the passes in progress. Errors
  // that change nothing:
  //   kInvalidArgument  There is no cache, a cache is null or named twice, or max_tokens is below 1.
  //                     A sequence is unknown, named twice, longer than its `length`, or in another
  //                     transaction. (Nothing finds a `length` that is too high: caches may know
  //                     fewer tokens than the caller.)
  //   kCacheFull        There are too few free cells for max_tokens of each sequence.
  //   kUnsupported      A cache has no transactions, or two of the caches are of kinds outside this
  //                     library, which cannot begin and commit together.
  //   kOutOfMemory      There is no memory for metadata.
  static Result<Transaction> Begin(std::span<Cache* const> caches,
                                   std::span<const SequenceLength> members,
                                   const TransactionOptions& options);
  static Result<Transaction> Begin(std::initializer_list<Cache*> caches,
                                   std::initializer_list<SequenceLength> members,
                                   const TransactionOptions& options) {
    return Begin(std::span(caches.begin(), caches.size()),
                 std::span(members.begin(), members.size()), options);
  }

  Transaction(Transaction&& other) noexcept;
  Transaction& operator=(Transaction&& other) noexcept;
  ~Transaction() { RollBack(); }

  // Keeps the positions below members[i].length + tokens[i] in all caches, which are the first
  // tokens[i] tokens that were written unless positions were skipped. Ends the transaction and the
  // passes in progress. Errors:
  //   kInvalidArgument  A number is negative or above what a cache has written. There is not one
  //                     for each member. The transaction is isolated, or has ended.
  //   kUnsupported      A recurrent state cannot be computed there, see above.
  //   any other code    The backend failed. The transaction is rolled back.
  // After the first two the transaction continues.
  Status Commit(std::span<const Position> tokens);
  Status Commit(std::initializer_list<Position> tokens) {
    return Commit(std::span(tokens.begin(), tokens.size()));
  }

  // Gives back all that was written and ends the passes in progress. Cannot fail. Does nothing if
  // the transaction has ended.
  void RollBack();

  // Returns whether neither Commit nor RollBack has ended it.
  bool open() const { return !caches_.empty(); }

 private:
  Transaction() = default;

  std::vector<CacheTransactions*> caches_;  // empty: ended
  std::vector<SequenceLength> members_;
  std::vector<SequenceLength> kept_;  // [members]: what Commit keeps
  bool isolated_ = false;
};

}  // namespace kvcache
