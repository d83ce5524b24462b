// What a cache needs of a machine: memory, and kernels for keys and values. An engine with kernels
// of its own implements KvBackend alone; backend.h adds what this project's models need.
//
// Thread safety: one thread at a time calls into a backend. It may use many inside.
// Exactness: every call computes each token's result in an order that positions and shapes alone
// fix; docs/design/exactness.md says what an implementation must keep to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

// Memory of a backend, zeroed when new, freed with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() = 0;  // an address in the backend's memory, 64-byte aligned
  virtual std::size_t size_bytes() const = 0;
};

// What a backend's kernels want of a cache.
struct CacheConfig {
  KvLayout layout = KvLayout::kPlain;
  int cell_padding = 1;       // capacity and get()'s history are multiples of this
  int batch_padding = 1;      // rows of get()'s mask are padded to a multiple of this
  bool v_transposed = false;  // plain layout only: V[kv_head][v_dim][cell]
  DType mask_type = DType::kF32;
  bool operator==(const CacheConfig&) const = default;
};

// Rotary position embedding: pair i of a head turns by position × inv_freq[i].
struct RopeParams {
  enum class Pairing : std::uint8_t {
    kInterleaved,  // (x[2i], x[2i+1]): llama's GGUF files
    kHalves,       // (x[i], x[i + dims/2]): NeoX style
  };
  Pairing pairing = Pairing::kInterleaved;
  int dims = 0;                       // neighbouring values of a head that turn; the rest stay
  std::span<const float> inv_freq{};  // [dims / 2], scalings of the model included
  float magnitude = 1.0f;             // factor on the turned values (YaRN); not used by shifts
  int first = 0;                      // of the `dims` values of a head; those before stay, too
};

// What is added to a score for the distance between query and key alone, a head's own: value i is
// for keys at the query's position - past + i; for keys further away the nearest value is taken.
struct PositionBias {
  std::span<const float> values{};  // [past + 1 + future, heads], host memory; empty: none
  int past = 0;
  int future = 0;
};

struct AttentionOptions {
  float scale = 1.0f;
  float soft_cap = 0.0f;           // > 0: scores become cap × tanh(score / cap)
  std::span<const float> sinks{};  // [heads] or empty: a logit in each head's denominator
  PositionBias bias{};             // added to scores, after soft_cap
};

class KvBackend {
 public:
  virtual ~KvBackend() = default;

  virtual std::string_view name() const = 0;
  virtual CacheConfig preferred_cache_config() const = 0;

  // Ok iff every kernel serves these types at full speed; else kUnsupported, naming the types.
  virtual Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const = 0;

  // `size_bytes` zeroed bytes, or kOutOfMemory with the number.
  virtual Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) = 0;

  // Writes a batch's K [k_dim, kv_heads, batch] and V [v_dim, kv_heads, batch] (f32, rows of
  // any stride) to cells: batch token 0 to the first cell of the first run, and so on.
  // Converts to the layer's types and layout. Where the layer has V in K, V has its shape and is
  // not read. REQUIRES: the runs hold `batch` cells in sum.
  virtual Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                         std::span<const CellRun> cells) = 0;

  // Copies whole cells within the layer, for compaction and copy-on-write.
  virtual Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) = 0;

  // to = from, value by value, between any of f32, f16 and bf16. REQUIRES: the same dims, no
  // overlap; rows of any stride, in this backend's memory.
  virtual Status CopyValues(const TensorView& from, const TensorView& to) = 0;

  // Turns the keys of `cells` by `offset` positions (negative: towards the beginning) and rounds
  // them to the layer's type once more. Values that turn may not be V as well.
  virtual Status ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                           const RopeParams& rope) = 0;

  // out[v_dim, heads, batch] = softmax(scale · q·K) · V over what each query sees; a query
  // that sees nothing gets zeros. q is [k_dim, heads, batch]; heads is a multiple of
  // kv_heads. All f32, dense. Errors name both sides of a mismatch.
  virtual Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                           const AttentionOptions& options, const TensorView& out) = 0;
};

}  // namespace kvcache
