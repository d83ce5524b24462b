// One forward pass over a batch: the operations that layers consist of, on activations in the
// model's buffer. A layer's graph is a list of these calls, in order.
//
// Errors. After the first error all further calls do nothing, and status() returns that error. A
// graph therefore needs no error handling.
//
// Activations are views of one buffer. A graph takes them like a stack; the end of a Scope releases
// those taken since its beginning. To find the buffer's size, run the graph once with a measuring
// pass, which computes nothing and counts the values taken. A graph must therefore take the same
// views whatever the values are.
//
//   x [hidden_size, batch] | views of a scope | views of a scope inside it | free
//
// Shapes: hidden states are [hidden_size, batch], heads [head_dim, heads, batch]; f32 and dense.
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

#include "kvcache/backend.h"
#include "kvcache/cache.h"
#include "kvcache/status.h"
#include "kvcache/visibility.h"
#include "model/graph/activation_buffer.h"
#include "model/load/weights.h"

namespace kvcache {

class AdapterBank;

// Returns the view moved forward by `bytes`. A measuring pass has no memory: data stays null.
inline TensorView WithOffset(TensorView view, std::int64_t bytes) {
  if (view.data != nullptr) view.data += bytes;
  return view;
}
// Returns values [first, first + count) of each row.
inline TensorView Slice(TensorView view, std::int64_t first, std::int64_t count) {
  view = WithOffset(view, first * view.stride_bytes[0]);
  view.dims[0] = count;
  return view;
}
// Returns [a, b, c] as [a, c, b]: heads by token as tokens by head, and back. Copies nothing.
inline TensorView TransposeHeads(TensorView view) {
  std::swap(view.dims[1], view.dims[2]);
  std::swap(view.stride_bytes[1], view.stride_bytes[2]);
  return view;
}

// Returns each token's values as one column: [d0 · d1, d2]. REQUIRES: the view is dense.
inline TensorView Flatten(const TensorView& view) {
  return TensorView::Dense(view.data, view.dtype, view.dims[0] * view.dims[1], view.dims[2]);
}

// Positions of three axes, and which of them rotates each pair of a head.
struct PassAxes {
  std::span<const Position>
      positions{};  // [batch, 3]: time, row, column; empty: the pass's positions
  std::span<const std::uint8_t> of_pair{};  // [rotated pairs]
};

class Pass;

// Attention of a pass that keeps its keys and values elsewhere than in a cache.
class PassAttention {
 public:
  virtual ~PassAttention() = default;
  // Does what Pass::Attention does for `layer`.
  virtual void Run(Pass& pass, int layer, const TensorView& q, const TensorView& k,
                   const TensorView& v, const AttentionOptions& options, const TensorView& out) = 0;
};

class Pass {
 public:
  // A pass over tokens at `positions`. All arguments must outlive it. `cache` may be null if the
  // graph uses none. Once *interrupt is true, the pass ends before its next operation, with
  // kCancelled. A null `interrupt` is never checked.
  Pass(Backend& backend, const ActivationBuffer& activations, Cache* cache,
       std::span<const Position> positions, const std::atomic<bool>* interrupt)
      : backend_(&backend),
        activations_(&activations),
        cache_(cache),
        positions_(positions),
        interrupt_(interrupt),
        batch_(static_cast<std::int64_t>(positions.size())) {}

  // A measuring pass, for batches of `batch` tokens.
  static Pass Measuring(std::int64_t batch) { return Pass(batch); }

  bool measuring() const { return activations_ == nullptr; }
  std::int64_t batch() const { return batch_; }
  std::span<const Position> positions() const { return positions_; }
  const Status& status() const { return status_; }
  // The largest number of values that were taken at once.
  std::int64_t peak_values() const { return peak_; }

  // Returns true if operations compute values: false in a measuring pass, after an error, after an
  // interrupt, and after the end that EndAfterPut set.
  bool runs() {
    if (activations_ == nullptr || ended_ || !status_.ok()) return false;
    if (interrupt_ == nullptr || !interrupt_->load(std::memory_order_relaxed)) return true;
    status_ = {StatusCode::kCancelled, "interrupted"};
    return false;
  }
  // Has `attention`, which must outlive the pass, do what Attention does with the cache.
  void AttendBy(PassAttention* attention) { attention_ = attention; }
  // Adds to all products what the tokens have of the bank's adapters; null: nothing. It must outlive the pass.
  void UseAdapters(AdapterBank* bank) { adapters_ = bank; }
  AdapterBank* adapters() const { return adapters_; }
  // Has Rope rotate by three axes.
  void UseAxes(const PassAxes& axes) { axes_ = axes; }

  // Skips all operations after the next Put: a layer whose output nobody needs still gives the cache its
  // keys and values.
  void EndAfterPut() { ends_after_put_ = true; }
  // Records `status` as the pass's error, unless there is an earlier one.
  void Check(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // Releases at its end the views taken since its beginning.
  class Scope {
   public:
    explicit Scope(Pass& pass) : pass_(pass), top_(pass.top_) {}
    ~Scope() { pass_.top_ = top_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Pass& pass_;
    std::int64_t top_;
  };

  // Takes a view [d0, d1, d2] with undefined values. A measuring pass returns a view without data.
  TensorView Take(std::int64_t d0, std::int64_t d1, std::int64_t d2 = 1);
  TensorView TakeHidden(std::int64_t size) { return Take(size, batch_); }
  TensorView TakeHeads(std::int64_t head_dim, std::int64_t heads) {
    return Take(head_dim, heads, batch_);
  }

  // Says that the next operations belong to a layer (Backend::EnterLayer). The views taken so far follow.
  void EnterLayer(int layer);
  // The same at the beginning, when no view has values yet.
  void BeginAt(int layer);

  // ---- Views of activations

  // Returns values [offset, offset + dim × heads) of each column of x, as heads [dim, heads,
  // batch]. REQUIRES: x is dense; hidden states, or heads.
  TensorView HeadsOf(const TensorView& x, std::int64_t offset, std::int64_t dim,
                     std::int64_t heads) const;
  // Returns heads first, first + 2, … of x [dim, 2 × heads, batch]. REQUIRES: x is dense, and first
  // is 0 or 1.
  static TensorView StridedHeads(const TensorView& x, std::int64_t first);

  // ---- Operations

  struct Product {
    const Projection& by;
    TensorView to;  // [outputs, batch], or heads with as many values
  };
  // to = by · x for each product, and what adapters add; x is [inputs, batch] or heads. `to` must not be x.
  // REQUIRES: at most four products. One call converts x for the matrices once.
  void Linear(const TensorView& x, std::initializer_list<Product> products);

  // y = x / rms(x) × weight over the first dimension: of hidden states, or of each head. y may be
  // x. Views from HeadsOf and StridedHeads are allowed if their rows are evenly spaced.
  void RmsNorm(const TensorView& x, const Norm& norm, const TensorView& y);

  // The same, for a norm of either kind. A layer norm needs hidden states.
  void Normalize(const TensorView& x, const Norm& norm, const TensorView& y);

  // y[:, i] = row tokens[i] of `table`.
  void Embed(const TensorView& table, std::span<const std::int32_t> tokens, const TensorView& y);
  // y[:, i] += what the adapters of token i say of row tokens[i] of the model's embedding.
  void AdaptEmbedding(std::span<const std::int32_t> tokens, const TensorView& y);
  void Add(const TensorView& x, const TensorView& y);  // x += y
  // to = from. The sizes must be equal; any strides are allowed.
  void Copy(const TensorView& from, const TensorView& to);
  // to = values of the host, as many as `to` has; `to` is dense.
  void CopyFromHost(const float* values, const TensorView& to);
  void Multiply(const TensorView& x, const TensorView& y);  // x *= y, which may be [1, batch]
  // gate = activation(gate) × up
  void Gate(const TensorView& gate, const TensorView& up, Activation activation);
  void GateClamped(const TensorView& gate, const TensorView& up, float alpha, float limit);
  void Activate(const TensorView& x, Activation activation);  // x = activation(x)
  void Xielu(const TensorView& x, const XieluParams& params);
  void Scale(const TensorView& x, float factor);                          // x *= factor
  void SoftCap(const TensorView& x, float cap);                           // x = cap tanh(x / cap)
  void ScaleTokens(const TensorView& x, std::span<const float> factors);  // x *= [batch]
  void Rope(const TensorView& heads, const RopeParams& rope);

  // Puts k and v [dim, kv_heads, batch] into the cache as `layer`'s.
  void Put(int layer, const TensorView& k, const TensorView& v);
  // out = attention of q over the keys and values of `layer` that each token sees.
  void Attend(int layer, const TensorView& q, const AttentionOptions& options,
              const TensorView& out);
  // out = attention of q over the keys and values of `layer` that `visible` shows. The pass gives the layer no
  // keys and values. REQUIRES: it shows cells of that layer to each query.
  void AttendView(int layer, const Visibility& visible, const TensorView& q,
                  const AttentionOptions& options, const TensorView& out);
  // Put, then Attend.
  void Attention(int layer, const TensorView& q, const TensorView& k, const TensorView& v,
                 const AttentionOptions& options, const TensorView& out);

  // Recurrent layers. The operations read the layer's states from the cache and write those after
  // the pass. In a pass of drafts they also keep the inputs that AcceptDrafts needs.
  // y = the short convolution of x [channels, batch]; y must not be x.
  void ShortConv(int layer, const TensorView& x, const ConvTaps& taps, const TensorView& y);
  // steps = ln(1 + exp(raw + bias)), decays = exp(rates × steps). `steps` may be `raw`.
  void DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                  const TensorView& steps, const TensorView& decays);
  // out = the output of the layer's state for each token (kvcache/recurrence.h).
  void Scan(int layer, const ScanInputs& inputs, const ScanOptions& options, const TensorView& out);

  // out = attention of q over the encoder outputs of the tokens' sequences, which are in the
  // cache's layer type `type`. Tokens of sequences without an output get zeros. `shape` is the
  // outputs'.
  void CrossAttention(int layer, int type, const KvShape& shape, const TensorView& q,
                      const AttentionOptions& options, const TensorView& out);

  // Sets mask[i] to 1 if token i's sequence has an encoder output, else to 0. REQUIRES: the cache's
  // layer is that of the last CrossAttention.
  void EncoderOutputMask(std::span<float> mask);

  Backend& backend() const { return *backend_; }  // REQUIRES: runs()

 private:
  explicit Pass(std::int64_t batch) : batch_(batch) {}

  void RotateByAxes(const TensorView& heads, const RopeParams& rope);

  Backend* backend_ = nullptr;
  const ActivationBuffer* activations_ = nullptr;
  Cache* cache_ = nullptr;
  PassAttention* attention_ = nullptr;
  std::span<const Position> positions_;
  const std::atomic<bool>* interrupt_ = nullptr;
  AdapterBank* adapters_ = nullptr;
  PassAxes axes_;
  std::int64_t batch_ = 0;
  std::int64_t top_ = 0;
  std::int64_t peak_ = 0;
  bool ends_after_put_ = false;
  bool ended_ = false;
  Status status_;
};

}  // namespace kvcache
