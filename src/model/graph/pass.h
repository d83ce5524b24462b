// One forward pass over a batch: the operations that layers are made of, on activations that lie
// in the model's scratch. A layer's graph is a list of these calls, from top to bottom.
//
// Errors. After the first one the calls do nothing more, and status() is that error: a graph needs
// no error handling of its own.
//
// Activations are pieces of one buffer, taken like a stack and given back when a Scope ends. How
// large it must be is found by running the graph with a pass that measures: it computes nothing
// and counts what is taken. So a graph must take the same whatever the values are.
//
//   x [hidden_size, batch] | what a scope took | what a scope inside it took | free
//
// Shapes: hidden states are [hidden_size, batch], heads [head_dim, heads, batch]; all f32 and
// dense. Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

#include "kvcache/backend.h"
#include "kvcache/cache.h"
#include "kvcache/status.h"
#include "model/graph/activation_buffer.h"
#include "model/load/weights.h"

namespace kvcache {

// The view, so many bytes on. While a pass measures there is no memory to point into.
inline TensorView WithOffset(TensorView view, std::int64_t bytes) {
  if (view.data != nullptr) view.data += bytes;
  return view;
}
// Values [first, first + count) of each row.
inline TensorView Slice(TensorView view, std::int64_t first, std::int64_t count) {
  view = WithOffset(view, first * view.stride_bytes[0]);
  view.dims[0] = count;
  return view;
}
// [a, b, c] as [a, c, b]: heads of tokens as tokens of heads, and back.
inline TensorView TransposeHeads(TensorView view) {
  std::swap(view.dims[1], view.dims[2]);
  std::swap(view.stride_bytes[1], view.stride_bytes[2]);
  return view;
}

// All of a token's values as one column: [d0 · d1, d2]. REQUIRES: dense.
inline TensorView Flatten(const TensorView& view) {
  return TensorView::Dense(view.data, view.dtype, view.dims[0] * view.dims[1], view.dims[2]);
}

class Pass {
 public:
  // A pass over tokens at `positions`. All must outlive it. Once *interrupt is true, the pass ends
  // before its next operation, with kCancelled; null: never.
  Pass(Backend& backend, const ActivationBuffer& activations, Cache* cache,
       std::span<const Position> positions, const std::atomic<bool>* interrupt)
      : backend_(&backend),
        activations_(&activations),
        cache_(cache),
        positions_(positions),
        interrupt_(interrupt),
        batch_(static_cast<std::int64_t>(positions.size())) {}

  // One that measures, for batches of `batch` tokens.
  static Pass Measuring(std::int64_t batch) { return Pass(batch); }

  bool measuring() const { return activations_ == nullptr; }
  std::int64_t batch() const { return batch_; }
  std::span<const Position> positions() const { return positions_; }
  const Status& status() const { return status_; }
  std::int64_t peak_values() const { return peak_; }

  // Does the graph go on, with values? False while measuring, after an error and after an
  // interrupt.
  bool runs() {
    if (activations_ == nullptr || !status_.ok()) return false;
    if (interrupt_ == nullptr || !interrupt_->load(std::memory_order_relaxed)) return true;
    status_ = {StatusCode::kCancelled, "interrupted"};
    return false;
  }
  // Makes `status` the pass's, unless it has one already.
  void Check(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // Gives back at its end what was taken since its beginning.
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

  // Room for d0 × d1 × d2 values, undefined.
  TensorView Take(std::int64_t d0, std::int64_t d1, std::int64_t d2 = 1);
  TensorView TakeHidden(std::int64_t size) { return Take(size, batch_); }
  TensorView TakeHeads(std::int64_t head_dim, std::int64_t heads) {
    return Take(head_dim, heads, batch_);
  }

  // ---- Views of activations

  // Values [offset, offset + dim × heads) of each column of x, as heads [dim, heads, batch]. x is
  // dense: hidden states, or heads.
  TensorView HeadsOf(const TensorView& x, std::int64_t offset, std::int64_t dim,
                     std::int64_t heads) const;
  // Heads first, first + 2, … of x [dim, 2 × heads, batch], dense. REQUIRES: first is 0 or 1.
  static TensorView StridedHeads(const TensorView& x, std::int64_t first);

  // ---- Operations

  struct Product {
    const Projection& by;
    TensorView to;  // [outputs, batch], or heads of as many values
  };
  // to = by · x for each product, x [inputs, batch] or heads; `to` may not be x. At most four.
  void Linear(const TensorView& x, std::initializer_list<Product> products);

  // y = x / rms(x) × weight over the first dimension of x: of hidden states, or of each head.
  // Either may be HeadsOf or StridedHeads of something, if its rows lie evenly apart.
  void RmsNorm(const TensorView& x, const Norm& norm, const TensorView& y);

  void Embed(const TensorView& table, std::span<const std::int32_t> tokens, const TensorView& y);
  void Add(const TensorView& x, const TensorView& y);  // x += y
  // to = from, of the same sizes; rows of any stride, as parts and permutations have them.
  void Copy(const TensorView& from, const TensorView& to);
  void Multiply(const TensorView& x, const TensorView& y);  // x *= y, which may be [1, batch]
  // gate = activation(gate) × up
  void Gate(const TensorView& gate, const TensorView& up, Activation activation);
  void GateClamped(const TensorView& gate, const TensorView& up, float alpha, float limit);
  void Activate(const TensorView& x, Activation activation);              // x = activation(x)
  void Scale(const TensorView& x, float factor);                          // x *= factor
  void SoftCap(const TensorView& x, float cap);                           // x = cap tanh(x / cap)
  void ScaleTokens(const TensorView& x, std::span<const float> factors);  // x *= [batch]
  void Rope(const TensorView& heads, const RopeParams& rope);

  // Puts k and v into the cache as `layer`'s.
  void Put(int layer, const TensorView& k, const TensorView& v);
  // out = attention of q over what each token sees of `layer`'s keys and values.
  void Attend(int layer, const TensorView& q, const AttentionOptions& options,
              const TensorView& out);
  // Both: puts k and v into the cache as `layer`'s; out = attention of q over what each token sees.
  void Attention(int layer, const TensorView& q, const TensorView& k, const TensorView& v,
                 const AttentionOptions& options, const TensorView& out);

  // Recurrent layers: the layer's states are read from the cache, and written to it.
  // y = the short convolution of x [channels, batch]; y is not x.
  void ShortConv(int layer, const TensorView& x, const ConvTaps& taps, const TensorView& y);
  // steps = ln(1 + exp(raw + bias)), decays = exp(rates × steps); steps may be raw.
  void DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                  const TensorView& steps, const TensorView& decays);
  // out = what each token finds in the layer's state (kvcache/recurrence.h).
  void Scan(int layer, const ScanInputs& inputs, const ScanOptions& options, const TensorView& out);

  // out = attention of q over the outputs that an encoder made for the tokens' sequences, in the
  // cache's layer type `type`; zeros where there is none. `shape` is that of the outputs.
  void CrossAttention(int layer, int type, const KvShape& shape, const TensorView& q,
                      const AttentionOptions& options, const TensorView& out);

  // 1 for each token whose sequence has an output, 0 for the others: of the last CrossAttention.
  void EncoderOutputMask(std::span<float> mask);

  Backend& backend() const { return *backend_; }  // REQUIRES: runs()

 private:
  explicit Pass(std::int64_t batch) : batch_(batch) {}

  Backend* backend_ = nullptr;
  const ActivationBuffer* activations_ = nullptr;
  Cache* cache_ = nullptr;
  std::span<const Position> positions_;
  const std::atomic<bool>* interrupt_ = nullptr;
  std::int64_t batch_ = 0;
  std::int64_t top_ = 0;
  std::int64_t peak_ = 0;
  Status status_;
};

}  // namespace kvcache
