#include "cache/encoder/encoder_transactions.h"

#include "cache/encoder/encoder_cache_impl.h"

namespace kvcache {

Status EncoderTransactions::PrepareBegin(std::span<const SequenceLength> members,
                                         Position /*max_tokens*/) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const SequenceId id = members[i].sequence;
    KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
    KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckBegin(members, i, parts_.lengths[Index(id)]));
  }
  return Status::Ok();
}

void EncoderTransactions::FinishBegin(std::span<const SequenceLength> members,
                                      Position max_tokens) {
  pass_.End();
  parts_.transactions.Open(members, max_tokens);
}

Status EncoderTransactions::CheckCommit(std::span<const SequenceLength> kept) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  for (const SequenceLength& member : kept) {
    KVCACHE_RETURN_IF_ERROR(
        parts_.transactions.CheckCommit(member, parts_.lengths[Index(member.sequence)]));
  }
  return Status::Ok();
}

void EncoderTransactions::FinishCommit(std::span<const SequenceLength> kept) {
  pass_.End();
  for (const auto& [sequence, length] : kept) {
    if (length < parts_.lengths[Index(sequence)]) cache_.ChangeLength(sequence, length);
  }
  parts_.transactions.Close(kept);
}

void EncoderTransactions::RollBack(std::span<const SequenceLength> members) {
  if (!parts_.storage.ready()) return;
  pass_.End();
  for (const auto& [sequence, length] : members) {
    if (!parts_.transactions.has(sequence)) continue;
    const Position begin = parts_.transactions.begin(sequence);
    if (begin < parts_.lengths[Index(sequence)]) cache_.ChangeLength(sequence, begin);
  }
  parts_.transactions.Close(members);
}

}  // namespace kvcache
