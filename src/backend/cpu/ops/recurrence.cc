#include "backend/cpu/ops/recurrence.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "backend/cpu/ops/recurrence_kernels.h"

namespace kvcache::cpu {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
// Columns of a state per task, if there are too few heads for all threads.
constexpr std::int64_t kScanColumns = 64;
constexpr std::int64_t kHeadsPerThread = 4;  // with so many, a task has whole heads
constexpr std::int64_t kRateValues =
    2'048;  // per task; each costs two exponentials and a logarithm

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

float* At(const TensorView& view, std::int64_t i1, std::int64_t i2 = 0, std::int64_t i3 = 0) {
  return reinterpret_cast<float*>(view.data + i1 * view.stride_bytes[1] +
                                  i2 * view.stride_bytes[2] + i3 * view.stride_bytes[3]);
}

std::int64_t Stride(const TensorView& view, int axis) {
  return view.stride_bytes[axis] / kFloat;
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

std::int64_t StrandsOf(const StateSegments& states) {
  return static_cast<std::int64_t>(states.strands.size()) - 1;
}

std::span<const StateSegment> SegmentsOf(const StateSegments& states, std::int64_t strand) {
  const auto at = static_cast<std::size_t>(strand);
  const auto begin = static_cast<std::size_t>(states.strands[at]);
  return states.segments.subspan(begin, static_cast<std::size_t>(states.strands[at + 1]) - begin);
}

const float* Before(const StateSegment& segment) {
  return reinterpret_cast<const float*>(segment.before);
}
float* After(const StateSegment& segment) {
  return reinterpret_cast<float*>(segment.after);
}

// ---- Convolution

std::string DescribeConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                         const TensorView& y) {
  return "x is " + Describe(x) + ", y is " + Describe(y) + ", taps are " + Describe(taps.taps) +
         ", a state has " + std::to_string(inputs.values) + " values";
}

Status CheckConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                 const TensorView& y) {
  const std::int64_t steps = taps.taps.dims[0];
  const std::int64_t channels = x.dims[0];
  const bool computes = y.data != nullptr;
  if (steps < 2 || steps > kernel::kConvSteps) {
    return {StatusCode::kUnsupported, "short convolution: " + std::to_string(steps) +
                                          " steps; must be 2 to " +
                                          std::to_string(kernel::kConvSteps)};
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

// Returns the channels from `channel` on of a segment.
kernel::ConvBlock BlockOf(const TensorView& x, const ConvTaps& taps, const StateSegment& segment,
                          const TensorView& y, std::int64_t channel) {
  const std::int64_t steps = taps.taps.dims[0];
  const std::int64_t state = channel * (steps - 1);
  const bool computes = y.data != nullptr;
  const bool biased = computes && taps.bias.has_value();
  return {.x = At(x, segment.first) + channel,
          .x_stride = Stride(x, 1),
          .y = computes ? At(y, segment.first) + channel : nullptr,
          .y_stride = Stride(y, 1),
          .tokens = segment.tokens,
          .taps = computes ? At(taps.taps, channel) : nullptr,
          .bias = biased ? taps.bias->as<const float>() + channel : nullptr,
          .before = Before(segment) + state,
          .after = After(segment) + state,
          .steps = static_cast<int>(steps),
          .channels =
              static_cast<int>(std::min<std::int64_t>(kernel::kConvBlock, x.dims[0] - channel))};
}

// ---- Scan

struct ScanSizes {
  std::int64_t k_dim, v_dim, groups, heads, batch;

  explicit ScanSizes(const ScanInputs& inputs)
      : k_dim(inputs.keys.dims[0]),
        v_dim(inputs.values.dims[0]),
        groups(inputs.keys.dims[1]),
        heads(inputs.values.dims[1]),
        batch(inputs.values.dims[2]) {}
};

Status CheckScan(const ScanInputs& inputs, const ScanOptions& options, const StateSegments& states,
                 const TensorView& out) {
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

// Returns at most `columns` columns from `column` on of head `head` of a segment.
kernel::ScanBlock BlockOf(const ScanInputs& inputs, const ScanOptions& options,
                          const StateSegment& segment, const TensorView& out, std::int64_t head,
                          std::int64_t column, std::int64_t columns) {
  const ScanSizes size(inputs);
  const std::int64_t first = segment.first;
  const std::int64_t state = head * size.k_dim * size.v_dim + column;
  const bool computes = out.data != nullptr;
  const std::int64_t group = options.groups == ScanGroups::kRotating
                                 ? head % size.groups
                                 : head / (size.heads / size.groups);
  return {.key = At(inputs.keys, group, first),
          .key_stride = Stride(inputs.keys, 2),
          .query = computes ? At(inputs.queries, group, first) : nullptr,
          .query_stride = Stride(inputs.queries, 2),
          .value = At(inputs.values, head, first) + column,
          .value_stride = Stride(inputs.values, 2),
          .decay = At(inputs.decays, first) + head,
          .decay_stride = Stride(inputs.decays, 1),
          .step = At(inputs.steps, first) + head,
          .step_stride = Stride(inputs.steps, 1),
          .out = computes ? At(out, head, first) + column : nullptr,
          .out_stride = Stride(out, 2),
          .before = Before(segment) + state,
          .after = After(segment) + state,
          .v_dim = size.v_dim,
          .k_dim = size.k_dim,
          .columns = std::min(columns, size.v_dim - column),
          .tokens = segment.tokens,
          .rule = options.rule,
          .norm_epsilon = options.norm_epsilon,
          .query_scale = options.query_scale,
          .skip = options.skip.empty() ? nullptr : &options.skip[static_cast<std::size_t>(head)]};
}

}  // namespace

Status ShortConv(ThreadPool& pool, const TensorView& x, const ConvTaps& taps,
                 const StateSegments& inputs, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(CheckConv(x, taps, inputs, y));
  const std::int64_t blocks = (x.dims[0] + kernel::kConvBlock - 1) / kernel::kConvBlock;
  pool.ParallelFor(StrandsOf(inputs) * blocks, [&](std::int64_t task, int) {
    const std::int64_t channel = task % blocks * kernel::kConvBlock;
    for (const StateSegment& segment : SegmentsOf(inputs, task / blocks)) {
      kernel::Convolve(BlockOf(x, taps, segment, y, channel));
    }
  });
  return Status::Ok();
}

Status StateScan(ThreadPool& pool, const ScanInputs& inputs, const ScanOptions& options,
                 const StateSegments& states, const TensorView& out) {
  KVCACHE_RETURN_IF_ERROR(CheckScan(inputs, options, states, out));
  const ScanSizes size(inputs);
  const std::int64_t heads = StrandsOf(states) * size.heads;
  // Two threads that write neighbouring parts of the same rows take lines from each other: the
  // processor prefetches lines beside those that a thread uses.
  const bool whole = heads >= kHeadsPerThread * pool.threads();
  const std::int64_t columns = whole ? std::max<std::int64_t>(1, size.v_dim) : kScanColumns;
  const std::int64_t blocks = (size.v_dim + columns - 1) / columns;
  pool.ParallelFor(heads * blocks, [&](std::int64_t task, int) {
    const std::int64_t head = task / blocks;
    for (const StateSegment& segment : SegmentsOf(states, head / size.heads)) {
      kernel::Scan(BlockOf(inputs, options, segment, out, head % size.heads,
                           task % blocks * columns, columns));
    }
  });
  return Status::Ok();
}

Status DecayRates(ThreadPool& pool, const TensorView& raw, const TensorView& bias,
                  const TensorView& rates, const TensorView& steps, const TensorView& decays) {
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
  const std::int64_t columns = std::max<std::int64_t>(1, kRateValues / heads);
  pool.ParallelFor((batch + columns - 1) / columns, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(batch, (task + 1) * columns);
    for (std::int64_t i = task * columns; i < end; ++i) {
      kernel::DecayRates(At(raw, i), bias.as<const float>(), rates.as<const float>(), heads,
                         At(steps, i), At(decays, i));
    }
  });
  return Status::Ok();
}

}  // namespace kvcache::cpu
