// The kernels that the engine's models need in addition to KvBackend: linear layers, norms,
// rotations, experts and recurrences. A cache needs kv_backend.h only.
//
// Thread safety and exactness: as kv_backend.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/expert_routing.h"
#include "kvcache/kv_backend.h"
#include "kvcache/recurrence.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

// A weight matrix, or a stack of matrices of one shape (a layer's experts), in the form that a
// backend's linear layers read. It may refer to the bytes it was made from, which must outlive it.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual std::int64_t inputs() const = 0;    // K: values per row
  virtual std::int64_t outputs() const = 0;   // N: rows per matrix
  virtual std::int64_t matrices() const = 0;  // in the stack; 1 for a single matrix
  virtual DType dtype() const = 0;
  virtual std::size_t owned_bytes() const = 0;  // without the bytes that it refers to
};

// One matrix of a Linear call, and the tensor for its result.
struct LinearOutput {
  const LinearWeight* weight = nullptr;
  TensorView y;             // [outputs, batch], f32, dense
  std::int64_t matrix = 0;  // index in the weight's stack
};

// One input, and the matrices that it is multiplied with.
struct LinearGroup {
  TensorView x;  // [inputs, batch], f32, dense
  std::span<const LinearOutput> outputs;
};

// How Route selects each token's experts from its logits, and computes their weights.
struct RouterOptions {
  int chosen = 1;  // experts per token
  enum class Gate : std::uint8_t {
    kSoftmax,  // over all experts
    kSigmoid,  // of each expert alone
  };
  Gate gate = Gate::kSoftmax;
  enum class Weights : std::uint8_t {
    kGateValues,  // the gate's values
    kNormalized,  // the gate's values, divided by their sum over the token's experts
  };
  Weights weights = Weights::kNormalized;
  float scale = 1.0f;  // factor on all weights
  // [experts] or empty: added to the gate's values for the selection; weights do not include it.
  std::span<const float> selection_bias{};
  // Experts form `groups` groups of equal size. A token's experts come from the `groups_used`
  // groups with the highest scores. A group's score is the sum of its `group_best` highest expert
  // values.
  int groups = 1;
  int groups_used = 1;
  int group_best = 1;
  // Largest number of experts with a bias or groups.
  static constexpr int kMaxScored = 1024;
};

// The activation function between the matrices of a feed-forward block.
enum class Activation : std::uint8_t {
  kSilu,         // x / (1 + exp(-x))
  kGelu,         // tanh approximation: x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))
  kRelu,         // max(x, 0)
  kReluSquared,  // max(x, 0)^2
  kSigmoid,      // 1 / (1 + exp(-x))
};

// The parameters of xIELU: for x > 0 alpha_positive x^2 + beta x, else
// alpha_negative (exp(min(x, epsilon)) - 1 - x) + beta x.
struct XieluParams {
  float alpha_positive = 0.0f;
  float alpha_negative = 0.0f;
  float beta = 0.0f;
  float epsilon = 0.0f;  // below 0
};

class Backend : public KvBackend {
 public:
  // Prepares W, dims {inputs, outputs} or {inputs, outputs, matrices}, rows dense as in a model
  // file, in host memory. The backend may repack the rows, and then the weight owns a copy of the same size, or
  // refer to them in place.
  virtual Result<std::unique_ptr<LinearWeight>> MakeLinear(const TensorView& w) = 0;

  // The same for a matrix that is multiplied where `base` is: an adapter's.
  virtual Result<std::unique_ptr<LinearWeight>> MakeLinearBeside(const LinearWeight& /*base*/,
                                                                 const TensorView& w) {
    return MakeLinear(w);
  }

  // Says that the next calls belong to a layer of the model: its number, kBeforeLayers for the embedding, or the
  // number of layers for what comes behind them. `live` [any], dense f32, has the activations that are in use. A
  // backend that divides layers among machines brings them where the layer is.
  static constexpr int kBeforeLayers = -1;
  virtual Status EnterLayer(int /*layer*/, const TensorView& /*live*/) { return Status::Ok(); }

  // Computes y = W x for each output. x is [inputs, batch], f32, dense, shared by all outputs.
  virtual Status Linear(const TensorView& x, std::span<const LinearOutput> outputs) = 0;

  // Computes the same for several x in one call. Starting many small products then costs as much as
  // starting one. Each y has the same bits as from Linear.
  virtual Status LinearGroups(std::span<const LinearGroup> groups) = 0;

  // Copies row tokens[i] of table (dims {width, rows}, any weight type) to y[:, i], as f32.
  virtual Status Embed(const TensorView& table, std::span<const std::int32_t> tokens,
                       const TensorView& y) = 0;

  // Computes y = x / rms(x) × weight for each column of x [width, batch]. y may be x.
  virtual Status RmsNorm(const TensorView& x, const TensorView& weight, float epsilon,
                         const TensorView& y) = 0;

  // Computes y = x - mean(x) for each column of x [width, batch]. y may be x. RmsNorm of the result is
  // a layer norm.
  virtual Status Center(const TensorView& x, const TensorView& y) = 0;

  // Rotates x [head_dim, heads, batch] in place, token i by positions[i].
  virtual Status Rope(const TensorView& x, std::span<const Position> positions,
                      const RopeParams& rope) = 0;

  // Computes gate = activation(gate) × up, element by element.
  virtual Status Gate(const TensorView& gate, const TensorView& up, Activation activation) = 0;

  // Computes gate = g / (1 + exp(-alpha g)) × (u + 1), element by element, with
  // g = min(gate, limit) and u = clamp(up, -limit, limit): gpt-oss's gate.
  virtual Status GateClamped(const TensorView& gate, const TensorView& up, float alpha,
                             float limit) = 0;

  // Computes x = activation(x), element by element.
  virtual Status Activate(const TensorView& x, Activation activation) = 0;

  // Computes x = xielu(x), element by element.
  virtual Status Xielu(const TensorView& x, const XieluParams& params) = 0;

  // Computes x *= factor.
  virtual Status Scale(const TensorView& x, float factor) = 0;

  // Computes x = cap × tanh(x / cap), element by element. REQUIRES: cap > 0.
  virtual Status SoftCap(const TensorView& x, float cap) = 0;

  // Computes x += y, element by element.
  virtual Status Add(const TensorView& x, const TensorView& y) = 0;

  // Computes x *= y, element by element. If y is [1, batch], it multiplies column i of x
  // [width, batch] by y[i].
  virtual Status Multiply(const TensorView& x, const TensorView& y) = 0;

  // Computes x += bias for each column of x [width, batch]; bias is [width].
  virtual Status AddBias(const TensorView& x, const TensorView& bias) = 0;

  // Computes x *= factors[i] for column i of x [width, batch]. `factors` [batch] is host memory.
  virtual Status ScaleColumns(const TensorView& x, std::span<const float> factors) = 0;

  // Selects each token's `chosen` experts from logits [experts, batch] as the options say, largest
  // value first, and computes their weights. Equal values are ordered by expert number. The
  // results [chosen × batch], token by token, are host memory.
  virtual Status Route(const TensorView& logits, const RouterOptions& options,
                       std::span<std::int32_t> experts, std::span<float> weights) = 0;

  // Computes out[:, i] = Σ_j weights[i·n + j] × y[:, columns[i·n + j]], ascending j, for each
  // column of out [width, batch], with n = columns.size() / batch. y is [width, any]. The spans are
  // host memory. REQUIRES: `out` does not overlap y.
  virtual Status Combine(const TensorView& y, std::span<const std::int32_t> columns,
                         std::span<const float> weights, const TensorView& out) = 0;

  // Returns an object that routes tokens to experts without the host, up to these sizes; or null, if the backend
  // has none. Errors: kOutOfMemory.
  virtual Result<std::unique_ptr<ExpertRouting>> MakeRouting(const RoutingSizes& /*sizes*/) {
    return std::unique_ptr<ExpertRouting>();
  }

  // ---- Recurrent layers, all f32. kvcache/recurrence.h explains segments.

  // Computes y, the short convolution of x [channels, batch] along each segment. Rows have any
  // stride. Reads the inputs before each segment and writes those of its last tokens. If y has no
  // data, only the states are computed; the taps then need no data either. REQUIRES: y does not
  // overlap x.
  virtual Status ShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                           const TensorView& y) = 0;

  // Computes steps = ln(1 + exp(raw + bias)) and decays = exp(rates × steps), each [heads, batch];
  // bias and rates are [heads]. steps may be raw.
  virtual Status DecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                            const TensorView& steps, const TensorView& decays) = 0;

  // For each token, updates each head's state S by options.rule, then computes
  // out[v_dim, heads, batch] = S q. Processes the tokens of a segment one after another. If `out`
  // has no data, only the states are computed; the queries then need no data either.
  virtual Status StateScan(const ScanInputs& inputs, const ScanOptions& options,
                           const StateSegments& states, const TensorView& out) = 0;
};

}  // namespace kvcache
