// Keys and values of neighbouring positions in host memory, in all layers: what a materialised
// snapshot is made of. Position p is cell p - first() of each layer, in the tiled layout.
//
//   first 16, cells 32      positions 16 … 31 | 32 … 47, of which the owner uses some
//
// Thread safety: immutable once filled, except for the count of bytes (one thread at a time).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/cells/page_memory.h"
#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/snapshot.h"
#include "kvcache/status.h"
#include "platform/aligned_buffer.h"

namespace kvcache {

// Counts and keeps the host memory of a cache's snapshots.
struct HostBytes {
  std::int64_t bytes = 0;
  MaterializeHook hook;
  PageMemory memory;
  void Add(std::int64_t change) {
    bytes += change;
    if (hook) hook(change);
  }
  // Reports that the cache is closed. Snapshots that outlive it are worth nothing.
  void Detach() {
    if (hook && bytes != 0) hook(-bytes);
    hook = nullptr;
    memory.Limit(0);
  }
};

class KvPage {
 public:
  static constexpr std::int32_t kMaxCells = 2048;  // so that a part of a snapshot frees memory

  // Returns a page with any contents for positions [begin, end). `layers` has the shape and the types of each
  // layer; a layer without kv_heads has no bytes. Errors: kOutOfMemory with the number of bytes.
  static Result<std::shared_ptr<KvPage>> Make(std::span<const LayerKv> layers, Position begin,
                                              Position end, std::shared_ptr<HostBytes> count);
  ~KvPage();
  KvPage(const KvPage&) = delete;
  KvPage& operator=(const KvPage&) = delete;

  Position first() const { return first_; }
  // [layers]; `k` is null for a layer without bytes.
  std::span<const LayerKv> layers() const { return layers_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.size_bytes()); }

 private:
  KvPage() = default;

  Position first_ = 0;
  std::vector<LayerKv> layers_;
  AlignedBuffer memory_;
  std::shared_ptr<HostBytes> count_;
};

// Describes host memory at `bytes` that holds `cells` cells of all layers, one layer after another,
// K before V, each aligned to 64 bytes, and returns its size. `layers` are described in place.
std::int64_t LayOutOnHost(std::span<LayerKv> layers, std::int64_t cells, std::byte* bytes);

// Copies cells of each layer that both sides have, one of them on the host.
Status TransferLayers(KvBackend& backend, std::span<const LayerKv> from,
                      std::span<const LayerKv> to, const CellMove& move);

}  // namespace kvcache
