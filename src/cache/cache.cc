#include "kvcache/cache.h"
#include "base/errors.h"

namespace kvcache {

Status Cache::FindCells(SequenceId, Position, Position, std::vector<HistoryRun>&) const {
  return Unsupported("this kind of cache has no cells at positions");
}

}  // namespace kvcache
