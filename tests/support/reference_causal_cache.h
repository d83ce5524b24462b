// A causal cache that follows the definition: every token is an object that sequences point to.
//
// A sequence is a map from position to token. A token has its key and value in each layer, after
// rounding and rotation. A cell is used while some sequence points to its token. CausalReference
// compares the real cache with this one.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/cache.h"
#include "support/cache_harness.h"
#include "support/reference_transactions.h"

namespace kvcache::testing {

// The key and value of a token in one layer. They are unknown, and absent, if the layer was not put
// or its Put failed.
struct ReferenceContent {
  std::vector<float> key;
  std::vector<float> value;
};

struct ReferenceToken {
  std::vector<std::optional<ReferenceContent>> layers;
};

class ReferenceCausalCache {
 public:
  using Token = std::shared_ptr<ReferenceToken>;
  using Sequence = std::map<Position, Token>;
  using RotateKeys = std::function<void(int layer, ReferenceContent& content)>;

  struct Options {
    int sequences = 1;
    std::int64_t cells = 0;
    int max_batch = 1;
    int layers = 1;
    bool can_shift = true;
    int window = 0;
    int retained_tokens = 0;  // the next token included; 0: all
    int chunk = 0;
  };
  struct Query {
    int sequence = 0;
    Position position = 0;
    bool bidirectional = false;
    std::vector<int> path{};  // batch indices of the drafts that it sees
  };

  explicit ReferenceCausalCache(const Options& options)
      : options_(options),
        sequences_(options.sequences),
        late_(options.sequences),
        transactions_(options.sequences) {}

  // Return the code that the real cache must return. They change nothing.
  StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const;
  StatusCode CheckCopy(int src, int dst, Position length) const;
  StatusCode CheckRemove(int sequence, Position begin, Position end) const;
  StatusCode CheckTransaction(const std::vector<SequenceLength>& members,
                              Position max_tokens) const;
  StatusCode CheckCommit(const std::vector<SequenceLength>& kept) const;

  // REQUIRES: the check returned kOk.
  void Begin(const TestBatch& batch, ForwardMode mode);
  void Accept(const std::vector<int>& last);
  void SetNonCausal(const std::vector<int>& queries);
  // Sets the contents of the batch's tokens in a layer; nullopt: unknown.
  void Put(int layer, const std::vector<std::optional<ReferenceContent>>& contents);
  void Copy(int src, int dst, Position length);
  // Applies `rotate` to the content of every token that moves, once per layer that has one.
  void Remove(int sequence, Position begin, Position end, const RotateKeys& rotate);
  void EndPass();
  // Drops what a pass at the end of the sequence would evict of it, but not its newest token.
  void Evict(int sequence);
  void BeginTransaction(const std::vector<SequenceLength>& members, Position max_tokens);
  // Returns the sequences to what they were, with the tokens up to the kept lengths.
  void EndTransaction(const std::vector<SequenceLength>& kept);

  // Replaces the sequence's tokens. `late`: those before the first one are gone, although nothing is
  // evicted.
  void Replace(int sequence, Sequence tokens, bool late);
  // Returns the number of cells that these sequences and tokens take, with the drafts.
  std::int64_t CellsWith(const std::vector<Sequence>& sequences, const Sequence& more) const;
  const std::vector<Sequence>& all() const { return sequences_; }
  const Options& options() const { return options_; }

  bool CanResume(int sequence, Position position) const;
  bool Sees(const Query& query, Position position) const;

  // Returns the tokens of the query's sequence and, in a pass of drafts, of the path to the query.
  std::map<Position, const ReferenceToken*> TokensOf(const Query& query) const;

  const Sequence& sequence(int index) const { return sequences_[index]; }
  int sequences() const { return options_.sequences; }
  std::int64_t used_cells() const {
    return UsedCells(sequences_) + static_cast<std::int64_t>(drafts().size());
  }
  // Returns the sequence of each draft of the pass.
  std::vector<int> drafts() const;
  Position length(int sequence) const;
  bool Known(int sequence) const { return sequence >= 0 && sequence < options_.sequences; }

  const ReferenceTransactions& transactions() const { return transactions_; }
  bool in_pass() const { return in_pass_; }
  bool reserving() const { return reserving_; }
  const std::vector<Query>& queries() const { return queries_; }

 private:
  static std::int64_t UsedCells(const std::vector<Sequence>& sequences);
  bool MayBegin(const TestBatch& batch) const;
  bool MayAdd(const TestBatch& batch) const;
  // Returns whether there are cells for this many more tokens without an eviction.
  bool Fits(std::int64_t more) const { return UsedCells(sequences_) + more <= options_.cells; }
  std::vector<Sequence> AfterEviction(const std::vector<TestToken>& batch) const;

  Options options_;
  std::vector<Sequence> sequences_;
  std::vector<bool> late_;    // [sequences], as in Replace
  std::vector<Token> batch_;  // of the pass in progress, empty when reserving
  std::vector<Query> queries_;
  ReferenceTransactions transactions_;
  std::map<int, Sequence> saved_;  // of each sequence in a transaction, as it was
  bool in_pass_ = false;
  bool drafting_ = false;
  bool reserving_ = false;
};

}  // namespace kvcache::testing
