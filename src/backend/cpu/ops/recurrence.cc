#include "backend/cpu/ops/recurrence.h"

#include <algorithm>

#include "backend/cpu/ops/recurrence_check.h"
#include "backend/cpu/ops/recurrence_kernels.h"

namespace kvcache::cpu {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
// Columns of a state per task, if there are too few heads for all threads.
constexpr std::int64_t kScanColumns = 64;
constexpr std::int64_t kHeadsPerThread = 4;  // with so many, a task has whole heads
constexpr std::int64_t kRateValues =
    2'048;  // per task; each costs two exponentials and a logarithm

float* At(const TensorView& view, std::int64_t i1, std::int64_t i2 = 0, std::int64_t i3 = 0) {
  return reinterpret_cast<float*>(view.data + i1 * view.stride_bytes[1] +
                                  i2 * view.stride_bytes[2] + i3 * view.stride_bytes[3]);
}

std::int64_t Stride(const TensorView& view, int axis) {
  return view.stride_bytes[axis] / kFloat;
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
  KVCACHE_RETURN_IF_ERROR(CheckShortConv(x, taps, inputs, y));
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
  KVCACHE_RETURN_IF_ERROR(CheckStateScan(inputs, options, states, out));
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
  KVCACHE_RETURN_IF_ERROR(CheckDecayRates(raw, bias, rates, steps, decays));
  const std::int64_t heads = raw.dims[0];
  const std::int64_t batch = raw.dims[1];
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
