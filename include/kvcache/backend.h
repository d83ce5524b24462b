// What the engine's models need of a machine, beside KvBackend: linear layers, norms, rotations,
// experts and recurrences. A cache needs kv_backend.h alone.
//
// Thread safety and exactness: as kv_backend.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/kv_backend.h"
#include "kvcache/recurrence.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

// A weight matrix, or a stack of matrices of one shape (a layer's experts), in the form that a
// backend's linear layers read. May refer to the bytes it was made from: those must outlive it.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual std::int64_t inputs() const = 0;    // K: values of a row
  virtual std::int64_t outputs() const = 0;   // N: rows of each matrix
  virtual std::int64_t matrices() const = 0;  // of the stack; mostly 1
  virtual DType dtype() const = 0;
  virtual std::size_t owned_bytes() const = 0;  // beyond the bytes it refers to
};

// One matrix of a Linear call and where its result goes.
struct LinearOutput {
  const LinearWeight* weight = nullptr;
  TensorView y;             // [outputs, batch], f32, dense
  std::int64_t matrix = 0;  // which of the weight's stack
};

// Activations and all that they are multiplied with.
struct LinearGroup {
  TensorView x;  // [inputs, batch], f32, dense
  std::span<const LinearOutput> outputs;
};

// How a token's experts follow from its logits, one for each expert.
struct RouterOptions {
  int chosen = 1;  // experts of each token
  enum class Gate : std::uint8_t {
    kSoftmax,  // over all experts
    kSigmoid,  // each expert by itself
  };
  Gate gate = Gate::kSoftmax;
  enum class Weights : std::uint8_t {
    kGateValues,  // what the gate says
    kNormalized,  // the same, then divided by the sum of those chosen
  };
  Weights weights = Weights::kNormalized;
  float scale = 1.0f;  // factor on all weights
  // [experts] or empty: added to what the gate says when experts are chosen, and only then.
  std::span<const float> selection_bias{};
  // The experts are so many groups of equal size, and a token's experts come from its best few. A
  // group is as good as the sum of its `group_best` best experts.
  int groups = 1;
  int groups_used = 1;
  int group_best = 1;
  // With a bias or groups there are at most so many experts.
  static constexpr int kMostScored = 1024;
};

// What stands between the matrices of a feed-forward part.
enum class Activation : std::uint8_t {
  kSilu,         // x / (1 + exp(-x))
  kGelu,         // its tanh form: x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))
  kRelu,         // max(x, 0)
  kReluSquared,  // max(x, 0)^2
  kSigmoid,      // 1 / (1 + exp(-x))
};

class Backend : public KvBackend {
 public:
  // Prepares W, dims {inputs, outputs} or {inputs, outputs, matrices}, rows dense as in a model
  // file. Row data may be repacked (then the weight owns a copy of the same size) or used where
  // it lies.
  virtual Result<std::unique_ptr<LinearWeight>> MakeLinear(const TensorView& w) = 0;

  // y = W x for each output; x is [inputs, batch], f32, dense, the same for all of them.
  virtual Status Linear(const TensorView& x, std::span<const LinearOutput> outputs) = 0;

  // The same for several x at once: the groups' work is shared out together, so that many small
  // products cost no more to start than one. Each y has the bits that Linear gives it.
  virtual Status LinearGroups(std::span<const LinearGroup> groups) = 0;

  // y[:, i] = row tokens[i] of table (dims {width, rows}, any weight type), as f32.
  virtual Status Embed(const TensorView& table, std::span<const std::int32_t> tokens,
                       const TensorView& y) = 0;

  // y = x / rms(x) × weight for each column of x [width, batch]; y may be x.
  virtual Status RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                         const TensorView& y) = 0;

  // Turns x [head_dim, heads, batch] in place, token i by positions[i].
  virtual Status Rope(const TensorView& x, std::span<const Position> positions,
                      const RopeParams& rope) = 0;

  // gate = activation(gate) × up, element by element.
  virtual Status Gate(const TensorView& gate, const TensorView& up, Activation activation) = 0;

  // gate = g / (1 + exp(-alpha g)) × (u + 1), element by element, where g is gate but at most
  // `limit` and u is up but within ±limit: gpt-oss's gate.
  virtual Status GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                             float limit) = 0;

  // x = activation(x), element by element.
  virtual Status Activate(const TensorView& x, Activation activation) = 0;

  // x *= factor.
  virtual Status Scale(const TensorView& x, float factor) = 0;

  // x = cap × tanh(x / cap), element by element. REQUIRES: cap > 0.
  virtual Status SoftCap(const TensorView& x, float cap) = 0;

  // x += y, element by element.
  virtual Status Add(const TensorView& x, const TensorView& y) = 0;

  // x *= y, element by element; or, with y [1, batch], column i of x [width, batch] by y[i].
  virtual Status Multiply(const TensorView& x, const TensorView& y) = 0;

  // x += bias for each column of x [width, batch]; bias is [width].
  virtual Status AddBias(const TensorView& x, const TensorView& bias) = 0;

  // x *= factors[i] for column i of x [width, batch]; `factors` [batch] is host memory.
  virtual Status ScaleColumns(const TensorView& x, std::span<const float> factors) = 0;

  // The `chosen` experts with the largest of each token's logits [experts, batch] (or as the
  // options say), largest first, of equal ones that with the lower number first; and their
  // weights. Results, by token, are host memory [chosen × batch]: the caller forms groups of
  // tokens from them.
  virtual Status Route(const TensorView& logits, const RouterOptions& options,
                       std::span<std::int32_t> experts, std::span<float> weights) = 0;

  // out[:, i] = Σ_j weights[i·n + j] × y[:, columns[i·n + j]], ascending j, for each column of
  // out [width, batch], where n = columns.size() / batch; y is [width, any]. All spans host
  // memory. `out` may not overlap y.
  virtual Status Combine(const TensorView& y, std::span<const std::int32_t> columns,
                         std::span<const float> weights, const TensorView& out) = 0;

  // ---- Recurrent layers: kvcache/recurrence.h says how sequences lie in a batch. All f32.

  // y = the short convolution of x [channels, batch] along each sequence; rows of any stride, y
  // apart from x. Takes the inputs before the pass, and leaves those of its last steps.
  virtual Status ShortConv(const TensorView& x, const ConvTaps& taps, const StateViews& inputs,
                           const TensorView& y) = 0;

  // steps = ln(1 + exp(raw + bias)), decays = exp(rates × steps), each [heads, batch]; bias and
  // rates [heads]. steps may be raw.
  virtual Status DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                            const TensorView& steps, const TensorView& decays) = 0;

  // out[v_dim, heads, batch] = S q for each token, after each head's state S has taken the token
  // in by the rule. Tokens of a sequence are taken one after another.
  virtual Status StateScan(const ScanInputs& inputs, const ScanOptions& options,
                           const StateViews& states, const TensorView& out) = 0;
};

}  // namespace kvcache
