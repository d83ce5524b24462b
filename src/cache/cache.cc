#include "kvcache/cache.h"

namespace kvcache {

Status Cache::FindCells(SequenceId, Position, Position, std::vector<HistoryRun>&) const {
  return {StatusCode::kUnsupported, "this kind of cache has no cells at positions"};
}

}  // namespace kvcache
