#include "cache/encoder/encoder_parts.h"

#include <numeric>

#include "base/strings.h"

namespace kvcache {

Status EncoderParts::CheckInit(const KvBackend& backend, const CacheOptions& sizes) {
  KVCACHE_RETURN_IF_ERROR(storage.CheckInit(backend, sizes));
  const CacheConfig config = CacheStorage::ConfigFor(backend, sizes);
  if (options.max_tokens < 0) {
    return Invalid(StrCat("max_tokens is ", options.max_tokens, "; must be at least 0"));
  }
  if (options.max_tokens == 0) options.max_tokens = sizes.capacity;
  const std::int64_t cells = RoundUp(options.max_tokens, std::lcm(config.cell_padding, kCellTile));
  if (cells * sizes.max_sequences > kMaxCells) {
    return Invalid(StrCat("max_sequences ", sizes.max_sequences, " x max_tokens ",
                          options.max_tokens, " are more than ", kMaxCells,
                          " cells; make one of them smaller"));
  }
  stride = static_cast<std::int32_t>(cells);
  return CheckTypes(backend, sizes, config);
}

void EncoderParts::Reset(const CacheOptions& sizes) {
  entries.Reset(sizes.max_sequences);
  outputs.assign(sizes.max_sequences, {});
  lengths.assign(sizes.max_sequences, 0);
  captures.Reset(sizes.max_sequences);
  transactions.Reset(sizes.max_sequences);
  pool = std::make_shared<EncoderSnapshotPool>(entries, storage, stride);
}

void EncoderParts::Open(KvBackend& backend, const CacheOptions& sizes) {
  storage.Open(backend, sizes, std::int64_t{stride} * sizes.max_sequences);
}

void EncoderParts::Close() {
  captures.Clear();
  if (pool != nullptr) pool->Detach();
  pool = {};
  storage.Close();
  entries = {};
  outputs = {};
}

CellRun EncoderParts::CellsOf(const EncoderOutput& output) const {
  if (output.entry == EncoderOutput::kNone) return {};
  return {output.entry * stride, output.tokens};
}

void EncoderParts::Drop(SequenceId id) {
  EncoderOutput& output = outputs[Index(id)];
  if (output.entry != EncoderOutput::kNone) entries.Release(output.entry);
  output = {.first_gone = output.first_gone};
}

}  // namespace kvcache
