// The encoder cache's calls for transactions (kvcache/transaction.h). A sequence's output cannot
// change in one, so only its length does.
#include <span>

#include "cache/encoder/encoder_cache_impl.h"

namespace kvcache {

Status EncoderCacheImpl::PrepareBegin(std::span<const SequenceLength> members,
                                      Position /*max_tokens*/) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const SequenceId id = members[i].sequence;
    KVCACHE_RETURN_IF_ERROR(CheckSequence(id, storage_.options()));
    KVCACHE_RETURN_IF_ERROR(transactions_.CheckBegin(members, i, lengths_[Index(id)]));
  }
  return Status::Ok();
}

void EncoderCacheImpl::FinishBegin(std::span<const SequenceLength> members, Position max_tokens) {
  EndPass();
  transactions_.Open(members, max_tokens);
}

Status EncoderCacheImpl::CheckCommit(std::span<const SequenceLength> kept) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  for (const SequenceLength& member : kept) {
    KVCACHE_RETURN_IF_ERROR(transactions_.CheckCommit(member, lengths_[Index(member.sequence)]));
  }
  return Status::Ok();
}

void EncoderCacheImpl::FinishCommit(std::span<const SequenceLength> kept) {
  EndPass();
  for (const auto& [sequence, length] : kept) {
    if (length < lengths_[Index(sequence)]) ChangeLength(sequence, length);
  }
  transactions_.Close(kept);
}

void EncoderCacheImpl::RollBack(std::span<const SequenceLength> members) {
  if (!storage_.ready()) return;
  EndPass();
  for (const auto& [sequence, length] : members) {
    if (!transactions_.has(sequence)) continue;
    const Position begin = transactions_.begin(sequence);
    if (begin < lengths_[Index(sequence)]) ChangeLength(sequence, begin);
  }
  transactions_.Close(members);
}

}  // namespace kvcache
