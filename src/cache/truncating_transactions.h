// The transactions (kvcache/transaction.h) of a kind whose passes never write over what earlier tokens have:
// taking a pass back is a truncation. A Kind is a cache with
//
//   CheckReady(), CheckKnown(id)             Status
//   open_transactions()                      OpenTransactions&
//   KnownTokens(id)                          the tokens that it knows of the sequence
//   PrepareTransaction(members, max_tokens)  Status: the rest of what can fail when a transaction begins
//   BeginTransaction()                       the rest of what changes then; ends the pass
//   KeepTokens(id, length)                   takes back the tokens from `length` on
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <span>

#include "cache/open_transactions.h"
#include "cache/two_phase.h"

namespace kvcache {

template <typename Kind>
class TruncatingTransactions final : public TwoPhaseTransactions {
 public:
  // `kind` must outlive this.
  explicit TruncatingTransactions(Kind& kind) : kind_(kind) {}

  Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) override {
    KVCACHE_RETURN_IF_ERROR(kind_.CheckReady());
    for (std::size_t i = 0; i < members.size(); ++i) {
      const SequenceId id = members[i].sequence;
      KVCACHE_RETURN_IF_ERROR(kind_.CheckKnown(id));
      KVCACHE_RETURN_IF_ERROR(
          kind_.open_transactions().CheckBegin(members, i, kind_.KnownTokens(id)));
    }
    return kind_.PrepareTransaction(members, max_tokens);
  }
  void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) override {
    kind_.BeginTransaction();
    kind_.open_transactions().Open(members, max_tokens);
  }

  Status CheckCommit(std::span<const SequenceLength> kept) const override {
    KVCACHE_RETURN_IF_ERROR(kind_.CheckReady());
    for (const SequenceLength& member : kept) {
      KVCACHE_RETURN_IF_ERROR(
          kind_.open_transactions().CheckCommit(member, kind_.KnownTokens(member.sequence)));
    }
    return Status::Ok();
  }
  Status PrepareCommit(std::span<const SequenceLength> /*kept*/) override { return Status::Ok(); }
  void FinishCommit(std::span<const SequenceLength> kept) override {
    kind_.EndPass();
    for (const auto& [id, length] : kept) kind_.KeepTokens(id, length);
    kind_.open_transactions().Close(kept);
  }

  void RollBack(std::span<const SequenceLength> members) override {
    if (!kind_.CheckReady().ok()) return;
    kind_.EndPass();
    for (const SequenceLength& member : members) {
      const SequenceId id = member.sequence;
      if (!kind_.open_transactions().has(id)) continue;
      kind_.KeepTokens(id, kind_.open_transactions().begin(id));
    }
    kind_.open_transactions().Close(members);
  }

 private:
  Kind& kind_;
};

}  // namespace kvcache
