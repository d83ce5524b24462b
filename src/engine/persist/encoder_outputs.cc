// The outputs of an encoder in a store: PrefixStore's part for models that read a whole text first.
//
// An object is the snapshot of the encoder cache after the decoder's first token, which has the keys and values
// that the decoder's layers attend to. The decoder's own keys and values are not in it: the first token is
// evaluated again, which leaves its logits.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/errors.h"
#include "engine/engine_impl.h"
#include "engine/persist/prefix_store.h"
#include "engine/persist/store_calls.h"
#include "kvcache/encoder_cache.h"

namespace kvcache {
namespace {

// The positions of the decoder's first token, which the output belongs to.
constexpr Position kOutputBegin = 0;
constexpr Position kOutputEnd = 1;

}  // namespace

Result<std::unique_ptr<Snapshot>> PrefixStore::ImportOutput(std::span<const std::byte> payload,
                                                            std::size_t tokens) {
  EncoderCache& encoder = *engine_.cache().Encoder();
  KVCACHE_ASSIGN_OR_RETURN(auto output, encoder.snapshots()->Import(payload));
  if (output->begin() != kOutputBegin || output->end() != kOutputEnd) {
    return Corrupt("the object is not the output of an encoder");
  }
  KVCACHE_RETURN_IF_ERROR(
      encoder.CheckOutput(*output, static_cast<std::int32_t>(tokens), output_shapes_));
  return output;
}

Status PrefixStore::RestoreOutput(SequenceId sequence, const Snapshot& output) {
  EncoderCache& encoder = *engine_.cache().Encoder();
  Status restored = encoder.snapshots()->Restore(sequence, &output, kOutputEnd);
  if (!restored.ok()) (void)encoder.Remove(sequence, 0, kEndOfSequence).ok();  // never fails
  return restored;
}

Status PrefixStore::WriteOutput(SequenceId sequence, std::size_t tokens, const ObjectId& id,
                                int max_wait_ms) {
  EncoderCache& encoder = *engine_.cache().Encoder();
  KVCACHE_ASSIGN_OR_RETURN(const auto output,
                           encoder.snapshots()->TakeSnapshot(sequence, kOutputBegin, kOutputEnd));
  KVCACHE_RETURN_IF_ERROR(
      encoder.CheckOutput(*output, static_cast<std::int32_t>(tokens), output_shapes_));
  KVCACHE_ASSIGN_OR_RETURN(store::StoreBytes bytes, WriteStoredState(encoder, *output, {}));
  return Queue(id, std::move(bytes), max_wait_ms);
}

void PrefixStore::SaveOutput(SequenceId sequence, std::span<const std::int32_t> text,
                             std::uint64_t salt, Known& known) {
  const Status status = WithoutExceptions([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, keys_->OutputId(text, salt));
    if (std::find(known.ids.begin(), known.ids.end(), id) != known.ids.end()) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(WriteOutput(sequence, text.size(), id, known.max_wait_ms));
    known.ids.push_back(id);
    return Status::Ok();
  });
  (void)status.ok();
}

}  // namespace kvcache
