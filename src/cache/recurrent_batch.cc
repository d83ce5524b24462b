#include "cache/recurrent_batch.h"

#include <string>
#include <utility>

#include "base/strings.h"

namespace kvcache {
namespace {

Status Unsupported(const std::string& why) {
  return {StatusCode::kUnsupported, "recurrent layers: " + why};
}

std::string Name(SequenceId id) {
  return StrCat("sequence ", Index(id));
}

}  // namespace

void RecurrentBatch::Layout::Clear() {
  sequences.clear();
  first.clear();
  last.clear();
  tokens = 0;
}

void RecurrentBatch::Layout::Reserve(int count) {
  sequences.reserve(count);
  first.reserve(count);
  last.reserve(count);
}

void RecurrentBatch::Reset(int pass_sequences, int sequences) {
  current_.Reserve(pass_sequences);
  next_.Reserve(pass_sequences);
  seen_.assign(sequences, 0);
}

Status RecurrentBatch::Prepare(const Batch& batch) {
  next_.Clear();
  Status status = Read(batch);
  for (const SequenceId id : next_.sequences) seen_[Index(id)] = 0;
  return status;
}

Status RecurrentBatch::Read(const Batch& batch) {
  std::int32_t tokens = 0;  // of the current sequence
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const SequenceId id = batch.sequences[i];
    const Position position = batch.positions[i];
    if (i > 0 && id == batch.sequences[i - 1]) {
      if (position <= batch.positions[i - 1]) {
        return Unsupported(StrCat(Name(id), " has position ", position, " after ",
                                  batch.positions[i - 1], "; must be ascending"));
      }
      next_.last.back() = position;
      ++tokens;
    } else {
      if (seen_[Index(id)] != 0)
        return Unsupported(Name(id) + " has tokens in two places of the batch; must be neighbours");
      if (i > 0 && next_.tokens == 0) next_.tokens = tokens;
      if (i > 0 && tokens != next_.tokens) break;
      seen_[Index(id)] = 1;
      next_.sequences.push_back(id);
      next_.first.push_back(position);
      next_.last.push_back(position);
      tokens = 1;
    }
  }
  if (next_.tokens == 0) next_.tokens = tokens;
  if (tokens == next_.tokens) return Status::Ok();
  return Unsupported(StrCat(Name(next_.sequences.front()), " has ", next_.tokens, " tokens and ",
                            Name(next_.sequences.back()), " has ", tokens, "; must be as many"));
}

void RecurrentBatch::Begin() {
  std::swap(current_, next_);
  next_.Clear();
}

}  // namespace kvcache
