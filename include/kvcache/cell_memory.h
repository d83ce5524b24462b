// Memory of cells that goes back to the system while the cache lives. A KvBackend may implement this
// class too; a cache with CacheOptions::releases_memory finds it then.
//
// Thread safety: as KvBackend's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/status.h"

namespace kvcache {

class CellMemory {
 public:
  virtual ~CellMemory() = default;

  // As KvBackend::Allocate. The system gives the memory page by page, when a page is first written.
  virtual Result<std::unique_ptr<Buffer>> AllocateCells(std::size_t size_bytes) = 0;
  // Returns the least number of cells, a power of two, such that any aligned block of so many cells
  // fills whole pages of the layer; 0: there is none.
  virtual std::int64_t ReleasableCells(const LayerKv& layer) const = 0;
  // Gives the memory of a run back to the system; its contents are zeros then. REQUIRES: begin and
  // length are multiples of ReleasableCells(layer).
  virtual Status ReleaseCells(const LayerKv& layer, const CellRun& run) = 0;
};

}  // namespace kvcache
