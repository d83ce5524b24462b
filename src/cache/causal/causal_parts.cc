#include "cache/causal/causal_parts.h"

#include <numeric>
#include <string>

#include "base/strings.h"

namespace kvcache {
namespace {

// With strides of whole tiles a token is in the lane of its position.
std::int32_t WholeTiles(std::int32_t cells) {
  return cells < kCellTile ? cells : cells / kCellTile * kCellTile;
}

// Returns the number of cells before padding. retained_tokens 0: nothing is evicted.
std::int64_t CellsFor(const CacheOptions& options, std::int32_t retained_tokens) {
  const std::int64_t sequences = options.max_sequences;
  if (retained_tokens > 0) return sequences * retained_tokens + options.max_batch + options.cells;
  return options.cells > 0 ? options.cells : sequences * options.capacity;
}

// A ring needs as many cells as tokens are retained: the oldest one is evicted before the next one
// is claimed. It is rounded down to whole tiles if that leaves enough.
CellTableOptions TableFor(const CacheOptions& options, std::int32_t retained_tokens,
                          std::int64_t cells) {
  CellTableOptions table{.cells = static_cast<std::int32_t>(cells),
                         .sequences = options.max_sequences,
                         .drafts = options.max_batch,
                         .sequence_stride = WholeTiles(options.capacity),
                         .tracks_blocks = options.releases_memory,
                         .lowest_first = options.releases_memory};
  if (retained_tokens == 0) return table;
  const std::int32_t share = table.cells / options.max_sequences;
  table.placement = Placement::kRing;
  table.sequence_stride = WholeTiles(share) >= retained_tokens ? WholeTiles(share) : share;
  return table;
}

std::string SizesText(const CacheOptions& options, std::int32_t retained_tokens) {
  if (retained_tokens == 0) return SizesText(options);
  return StrCat("max_sequences ", options.max_sequences, " x retained_tokens ", retained_tokens,
                " + max_batch ", options.max_batch,
                options.cells > 0 ? StrCat(" + cells ", options.cells) : "");
}

}  // namespace

Status CausalParts::CheckInit(const KvBackend& backend, const CacheOptions& sizes) const {
  KVCACHE_RETURN_IF_ERROR(storage.CheckInit(backend, sizes));
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t retained_tokens,
                           WindowEviction::RetainedTokens(options, sizes));
  if (CellsFor(sizes, retained_tokens) > kMaxCells) {
    return Invalid(StrCat(SizesText(sizes, retained_tokens), " are more than ", kMaxCells,
                          " cells; make one of them smaller"));
  }
  return CheckTypes(backend, sizes, CacheStorage::ConfigFor(backend, sizes));
}

void CausalParts::Reset(const KvBackend& backend, const CacheOptions& sizes) {
  const int padding = CacheStorage::ConfigFor(backend, sizes).cell_padding;
  const std::int32_t retained_tokens = *WindowEviction::RetainedTokens(options, sizes);
  const std::int64_t number = RoundUp(CellsFor(sizes, retained_tokens), padding);
  cells.Reset(TableFor(sizes, retained_tokens, number));
  eviction.Reset(retained_tokens, sizes.max_sequences, sizes.max_batch);
  pool = std::make_shared<SnapshotPool>(cells, storage);
  captures.Reset(pool.get(), &cells, sizes.max_sequences, options.window);
  transactions.Reset(sizes.max_sequences);
  sizes_text = SizesText(sizes, retained_tokens);
}

void CausalParts::Open(KvBackend& backend, const CacheOptions& sizes) {
  const int padding = CacheStorage::ConfigFor(backend, sizes).cell_padding;
  const int multiple = sizes.releases_memory ? kReleasingCells : kCellTile;
  storage.Open(backend, sizes, RoundUp(cells.cells(), std::lcm(padding, multiple)));
}

void CausalParts::Clear() {
  cells = {};
  eviction = {};
  pool = {};
  captures = {};
  transactions = {};
}

void CausalParts::Close() {
  captures.Clear();
  if (pool != nullptr) pool->Detach();
  storage.Close();
  Clear();
}

}  // namespace kvcache
