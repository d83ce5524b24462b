// The interface between a cache and a machine: memory, and kernels for keys and values. An engine
// with its own kernels implements KvBackend; backend.h adds the kernels of this project's models.
//
// Thread safety: not thread-safe; one thread at a time calls into a backend. An implementation may
// use several threads inside a call.
// Exactness: every call computes each token's result in an order that depends on positions and
// shapes only. docs/design/exactness.md has the rules for implementations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "kvcache/visibility.h"

namespace kvcache {

// Memory of a backend. It is zeroed when allocated and freed with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() = 0;  // an address in the backend's memory, 64-byte aligned
  virtual std::size_t size_bytes() const = 0;
};

// The layout and paddings that a backend's kernels need.
struct CacheConfig {
  KvLayout layout = KvLayout::kPlain;
  int cell_padding = 1;           // the capacity and Get's history are multiples of this
  int batch_padding = 1;          // rows of Get's mask are padded to a multiple of this
  bool v_transposed = false;      // plain layout only: V[kv_head][v_dim][cell]
  DType mask_type = DType::kF32;  // f32 or f16
  bool operator==(const CacheConfig&) const = default;
};

// Rotary position embedding: rotates pair i of a head by position × inv_freq[i].
struct RopeParams {
  enum class Pairing : std::uint8_t {
    kInterleaved,  // (x[2i], x[2i+1]): llama's GGUF files
    kHalves,       // (x[i], x[i + dims/2]): NeoX style
  };
  Pairing pairing = Pairing::kInterleaved;
  int dims = 0;                       // consecutive values of a head that are rotated
  std::span<const float> inv_freq{};  // [dims / 2], with the model's scaling applied
  float magnitude = 1.0f;             // factor on the rotated values (YaRN); shifts ignore it
  int first = 0;                      // index of the first rotated value of a head
};

// A bias per head that is added to a score and depends only on the distance between query and key
// (T5). Value i applies to keys at the query's position - past + i. Keys further away get the
// nearest value.
struct PositionBias {
  std::span<const float> values{};  // [past + 1 + future, heads], host memory; empty: none
  int past = 0;
  int future = 0;
};

struct AttentionOptions {
  float scale = 1.0f;
  float soft_cap = 0.0f;           // > 0: scores become soft_cap × tanh(score / soft_cap)
  std::span<const float> sinks{};  // [heads] or empty: a logit added to each head's denominator
  PositionBias bias{};             // added to the scores after soft_cap
};

class KvBackend {
 public:
  virtual ~KvBackend() = default;

  virtual std::string_view name() const = 0;
  virtual CacheConfig preferred_cache_config() const = 0;

  // Returns whether kernels read and write any address of the host. If not, views must lie in buffers of
  // Allocate.
  virtual bool works_in_host_memory() const { return true; }

  // Names the order of codes in tiles of block types. Snapshots of caches with such types move between backends
  // with the same one.
  virtual std::string_view tile_format() const { return name(); }

  // Returns Ok if every kernel serves these types at full speed, else kUnsupported, naming them.
  virtual Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const = 0;

  // Returns `size_bytes` zeroed bytes, or kOutOfMemory with the number.
  virtual Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) = 0;

  // As Allocate, for memory that only the model's layer `layer` uses: its cells, its states. A backend that
  // divides layers among machines places it.
  virtual Result<std::unique_ptr<Buffer>> AllocateForLayer(int /*layer*/, std::size_t size_bytes) {
    return Allocate(size_bytes);
  }

  // Writes a batch's K [k_dim, kv_heads, batch] and V [v_dim, kv_heads, batch] (f32, rows of
  // any stride) to cells: batch token 0 to the first cell of the first run, and so on.
  // Converts to the layer's types and layout. If the layer has V in K, V has only a shape and is
  // not read. REQUIRES: the lengths of the runs add up to `batch`.
  virtual Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                         std::span<const CellRun> cells) = 0;

  // Copies whole cells within the layer, for compaction and copy-on-write.
  virtual Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) = 0;

  // Copies whole cells from one layer to another of the same shape and types. A layer with `on_host`
  // lies in host memory, in the tiled layout: snapshots move through this call. It runs at the speed
  // of a copy where a cell has the same lane (cell % kCellTile) in both layers. The bytes on the host
  // may depend on tile_format(), and on nothing else: not on the processor, nor on where the
  // cells lie. Errors: kUnsupported if the backend has no such copies.
  virtual Status TransferCells(const LayerKv& /*from*/, const LayerKv& /*to*/,
                               std::span<const CellMove> /*moves*/) {
    return {StatusCode::kUnsupported, "this backend has no copies between layers"};
  }

  // Copies `from` to `to`, value by value, between any of f32, f16 and bf16. Rows have any stride.
  // REQUIRES: equal dims, no overlap, this backend's memory.
  virtual Status CopyValues(const TensorView& from, const TensorView& to) = 0;

  // Copy dense values of any type from the backend's memory to host memory, and back: the recurrent states
  // of snapshots, weights, results. REQUIRES: both sides have as many bytes. Errors: kUnsupported if the
  // backend has no such copies.
  virtual Status CopyToHost(const TensorView& /*from*/, std::span<std::byte> /*to*/) {
    return {StatusCode::kUnsupported, "this backend has no copies to host memory"};
  }
  virtual Status CopyFromHost(std::span<const std::byte> /*from*/, const TensorView& /*to*/) {
    return {StatusCode::kUnsupported, "this backend has no copies from host memory"};
  }

  // Rotates the keys of `cells` by `offset` positions (negative: towards the beginning) and rounds
  // them to the layer's type again. If the layer has V in K, the rotated values must lie behind V.
  virtual Status ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                           const RopeParams& rope) = 0;

  // Computes out[v_dim, heads, batch] = softmax(scale · q·K) · V over the tokens that each query
  // sees. A query that sees no token gets zeros. q is [k_dim, heads, batch]; heads is a multiple of
  // kv_heads. All f32, dense. Errors: kInvalidArgument for shapes that do not match, with both
  // sides.
  virtual Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                           const AttentionOptions& options, const TensorView& out) = 0;
};

}  // namespace kvcache
