#include "backend/cpu/ops/recurrence_check.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace kvcache::cpu {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

Status Invalid(std::string_view operation, const std::string& message) {
  return {StatusCode::kInvalidArgument, std::string(operation) + ": " + message};
}

std::string Describe(const TensorView& view) {
  std::string text = std::string(InfoOf(view.dtype).name) + " [";
  for (int i = 0; i < TensorView::kMaxRank; ++i) {
    if (i >= 2 && view.dims[i] == 1) break;
    text += (i == 0 ? "" : ", ") + std::to_string(view.dims[i]);
  }
  return text + "]";
}

using Dims = std::array<std::int64_t, TensorView::kMaxRank>;

// Returns whether `view` is f32 of these sizes with its first `dense` dimensions contiguous.
bool IsF32(const TensorView& view, const Dims& dims, int dense) {
  if (view.dtype != DType::kF32 || view.dims != dims) return false;
  std::int64_t stride = kFloat;
  for (int i = 0; i < dense; ++i) {
    if (view.dims[i] != 1 && view.stride_bytes[i] != stride) return false;
    stride *= view.dims[i];
  }
  return true;
}

// Checks that each segment has tokens of the batch and two states, and that the strands are all of
// the segments.
Status CheckSegments(std::string_view operation, const StateSegments& states, std::int64_t batch) {
  for (std::size_t i = 0; i < states.segments.size(); ++i) {
    const StateSegment& s = states.segments[i];
    if (s.first >= 0 && s.tokens >= 1 && s.tokens <= batch - s.first && s.before != nullptr &&
        s.after != nullptr) {
      continue;
    }
    return Invalid(operation, "segment " + std::to_string(i) + " has " + std::to_string(s.tokens) +
                                  " tokens from " + std::to_string(s.first) +
                                  " on; must be in the " + "batch of " + std::to_string(batch) +
                                  ", with memory for both states");
  }
  const auto& strands = states.strands;
  if (!strands.empty() && strands.front() == 0 &&
      strands.back() == static_cast<std::int64_t>(states.segments.size()) &&
      std::is_sorted(strands.begin(), strands.end())) {
    return Status::Ok();
  }
  return Invalid(operation, "the strands must divide the " +
                                std::to_string(states.segments.size()) + " segments");
}

std::string DescribeConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                         const TensorView& y) {
  return "x is " + Describe(x) + ", y is " + Describe(y) + ", taps are " + Describe(taps.taps) +
         ", a state has " + std::to_string(inputs.values) + " values";
}

}  // namespace

Status CheckShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                      const TensorView& y) {
  const std::int64_t steps = taps.taps.dims[0];
  const std::int64_t channels = x.dims[0];
  const bool computes = y.data != nullptr;
  if (steps < 2 || steps > kConvSteps) {
    return {StatusCode::kUnsupported, "short convolution: " + std::to_string(steps) +
                                          " steps; must be 2 to " + std::to_string(kConvSteps)};
  }
  if (!IsF32(x, {channels, x.dims[1], 1, 1}, 1) || (computes && !IsF32(y, x.dims, 1)) ||
      !IsF32(taps.taps, {steps, channels, 1, 1}, 2) || inputs.values != (steps - 1) * channels) {
    return Invalid("short convolution",
                   DescribeConv(x, taps, inputs, y) +
                       "; must be f32 x and y [channels, batch], taps [steps, channels] and "
                       "(steps - 1) x channels values");
  }
  if (taps.bias.has_value() && !IsF32(*taps.bias, {channels, 1, 1, 1}, 1)) {
    return Invalid("short convolution", "bias is " + Describe(*taps.bias) +
                                            "; must be f32 with a value per channel of x, " +
                                            Describe(x));
  }
  return CheckSegments("short convolution", inputs, x.dims[1]);
}

Status CheckStateScan(const ScanInputs& inputs, const ScanOptions& options,
                      const StateSegments& states, const TensorView& out) {
  const ScanSizes size(inputs);
  const bool computes = out.data != nullptr;
  const Dims keys{size.k_dim, size.groups, size.batch, 1};
  const Dims values{size.v_dim, size.heads, size.batch, 1};
  const Dims rates{size.heads, size.batch, 1, 1};
  if (!IsF32(inputs.keys, keys, 1) || (computes && !IsF32(inputs.queries, keys, 1)) ||
      !IsF32(inputs.values, values, 1) || (computes && !IsF32(out, values, 1))) {
    return Invalid("state scan", "keys are " + Describe(inputs.keys) + ", queries are " +
                                     Describe(inputs.queries) + ", values are " +
                                     Describe(inputs.values) + ", out is " + Describe(out) +
                                     "; must be f32 keys and queries [k_dim, groups, batch], "
                                     "values and out [v_dim, heads, batch]");
  }
  if (!IsF32(inputs.decays, rates, 1) || !IsF32(inputs.steps, rates, 1) ||
      states.values != size.v_dim * size.k_dim * size.heads) {
    return Invalid("state scan", "decays are " + Describe(inputs.decays) + ", steps are " +
                                     Describe(inputs.steps) + ", values are " +
                                     Describe(inputs.values) + ", a state has " +
                                     std::to_string(states.values) +
                                     " values; must be f32 decays and steps [heads, batch] and "
                                     "v_dim x k_dim x heads values");
  }
  if (size.groups < 1 || size.heads % size.groups != 0 ||
      (!options.skip.empty() && static_cast<std::int64_t>(options.skip.size()) != size.heads)) {
    return Invalid("state scan", "there are " + std::to_string(size.heads) + " heads, " +
                                     std::to_string(size.groups) + " groups of keys and " +
                                     std::to_string(options.skip.size()) +
                                     " skip factors; heads must be a multiple of the groups, and "
                                     "skip factors none or one per head");
  }
  return CheckSegments("state scan", states, size.batch);
}

Status CheckDecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                       const TensorView& steps, const TensorView& decays) {
  const std::int64_t heads = raw.dims[0];
  const std::int64_t batch = raw.dims[1];
  const Dims each{heads, batch, 1, 1};
  const Dims vector{heads, 1, 1, 1};
  if (heads < 1 || !IsF32(raw, each, 1) || !IsF32(steps, each, 1) || !IsF32(decays, each, 1) ||
      !IsF32(bias, vector, 1) || !IsF32(rates, vector, 1)) {
    return Invalid("decay rates", "bias is " + Describe(bias) + ", rates are " + Describe(rates) +
                                      ", raw is " + Describe(raw) + ", steps are " +
                                      Describe(steps) + ", decays are " + Describe(decays) +
                                      "; must be f32 bias and rates [heads], and the others "
                                      "[heads, batch]");
  }
  return Status::Ok();
}

}  // namespace kvcache::cpu
