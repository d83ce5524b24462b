#include "cache/open_transactions.h"

#include <cassert>

#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

Status OpenTransactions::CheckBegin(std::span<const SequenceLength> members, std::size_t member,
                                    Position length) const {
  const auto& [id, begin] = members[member];
  KVCACHE_RETURN_IF_ERROR(CheckChange(id));
  for (std::size_t i = 0; i < member; ++i) {
    if (members[i].sequence == id) {
      return Invalid(StrCat("sequence ", Index(id), " is named twice in a transaction"));
    }
  }
  if (begin >= length && begin < kEndOfSequence) return Status::Ok();
  return Invalid(StrCat("a transaction of sequence ", Index(id), " from ", begin,
                        " tokens on; it has ", length));
}

void OpenTransactions::Open(std::span<const SequenceLength> members, Position max_tokens) {
  for (const auto& [id, length] : members) {
    assert(!has(id));
    of_[Index(id)] = {length, max_tokens};
    ++open_;
  }
}

void OpenTransactions::Close(std::span<const SequenceLength> members) {
  for (const auto& [id, length] : members) {
    if (!has(id)) continue;
    of_[Index(id)] = {};
    --open_;
  }
}

Status OpenTransactions::CheckChange(SequenceId id) const {
  if (!has(id)) return Status::Ok();
  return Invalid(
      StrCat("sequence ", Index(id), " is in a transaction; commit it or roll it back first"));
}

Status OpenTransactions::CheckWrites(const Batch& batch) const {
  for (std::size_t i = 0; i < batch.size() && any(); ++i) {
    const SequenceId id = batch.sequences[i];
    const Position position = batch.positions[i];
    const auto [begin, max_tokens] = of_[Index(id)];
    if (max_tokens == 0 || (position >= begin && position - begin < max_tokens)) continue;
    return Invalid(StrCat("token ", i, " of the batch is at position ", position, " of sequence ",
                          Index(id), ", whose transaction has room for ", max_tokens,
                          " tokens from ", begin, " on"));
  }
  return Status::Ok();
}

Status OpenTransactions::CheckCommit(const SequenceLength& kept, Position written) const {
  const auto& [id, length] = kept;
  if (!has(id)) return Invalid(StrCat("sequence ", Index(id), " is in no transaction"));
  if (length <= written || length == begin(id)) return Status::Ok();
  return Invalid(StrCat("Commit of ", length - begin(id), " tokens of sequence ", Index(id),
                        "; must be at most ", written > begin(id) ? written - begin(id) : 0,
                        ", which were written"));
}

}  // namespace kvcache
