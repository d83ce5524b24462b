#include "backend/cuda/ops/recurrence.h"

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cpu/ops/recurrence_check.h"
#include "backend/cuda/ops/recurrence_kernels.h"
#include "backend/cuda/ops/vectors.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kConvStates{"conv_states", kConvThreads};
constexpr Kernel kConvParts{"conv_parts", kConvThreads};
constexpr Kernel kRates{"decay_rates", kRateThreads};
constexpr Kernel kScan64{"scan_64", kScanThreads};
constexpr Kernel kScan128{"scan_128", kScanThreads};
constexpr Kernel kScanShared{"scan_shared", kScanThreads};
constexpr Kernel kScanGlobal{"scan_global", kScanThreads};

static_assert(kConvTokens >= cpu::kConvSteps);

constexpr std::size_t kSharedBytes = std::size_t{48} << 10;  // more needs fewer blocks a processor

std::int64_t FloatStride(const TensorView& view, int axis) {
  return view.stride_bytes[axis] / static_cast<std::int64_t>(sizeof(float));
}

std::int64_t PartsOf(std::int64_t values, std::int64_t size) {
  return (values + size - 1) / size;
}

std::int64_t StrandCount(const StateSegments& states) {
  return static_cast<std::int64_t>(states.strands.size()) - 1;
}

// Gives a kernel the segments: in its arguments if they are few.
Status SetSegments(CallMemory& memory, const StateSegments& states, SegmentList& list) {
  if (states.segments.size() <= SegmentList::kFew &&
      states.strands.size() <= SegmentList::kFew + 1) {
    std::ranges::copy(states.segments, list.few_segments);
    std::ranges::copy(states.strands, list.few_strands);
    return Status::Ok();
  }
  KVCACHE_ASSIGN_OR_RETURN(list.segments, memory.Upload(states.segments));
  KVCACHE_ASSIGN_OR_RETURN(list.strands, memory.Upload(states.strands));
  return Status::Ok();
}

// The tokens of all segments behind the first kConvTokens of each.
std::vector<ConvPart> PartsBehind(const StateSegments& inputs) {
  constexpr auto kTokens = static_cast<std::int32_t>(kConvTokens);
  std::vector<ConvPart> parts;
  for (const StateSegment& segment : inputs.segments) {
    for (std::int32_t t = kTokens; t < segment.tokens; t += kTokens) {
      parts.push_back({segment.first + t, std::min(kTokens, segment.tokens - t)});
    }
  }
  return parts;
}

ScanArgs ScanArgsOf(const ScanInputs& inputs, const ScanOptions& options, const TensorView& out) {
  const cpu::ScanSizes size(inputs);
  const bool computes = out.data != nullptr;
  ScanArgs args{};
  args.keys = inputs.keys.as<const float>();
  args.key_group = FloatStride(inputs.keys, 1);
  args.key_token = FloatStride(inputs.keys, 2);
  args.values = inputs.values.as<const float>();
  args.value_head = FloatStride(inputs.values, 1);
  args.value_token = FloatStride(inputs.values, 2);
  args.decays = inputs.decays.as<const float>();
  args.decay_token = FloatStride(inputs.decays, 1);
  args.steps = inputs.steps.as<const float>();
  args.step_token = FloatStride(inputs.steps, 1);
  if (computes) {
    args.queries = inputs.queries.as<const float>();
    args.query_group = FloatStride(inputs.queries, 1);
    args.query_token = FloatStride(inputs.queries, 2);
    args.out = out.as<float>();
    args.out_head = FloatStride(out, 1);
    args.out_token = FloatStride(out, 2);
  }
  args.k_dim = static_cast<std::int32_t>(size.k_dim);
  args.v_dim = static_cast<std::int32_t>(size.v_dim);
  args.groups = static_cast<std::int32_t>(size.groups);
  args.heads = static_cast<std::int32_t>(size.heads);
  args.blocks = static_cast<std::int32_t>(PartsOf(size.v_dim, kScanThreads));
  args.norm_epsilon = options.norm_epsilon;
  args.query_scale = options.query_scale;
  args.delta = options.rule == ScanRule::kDelta;
  args.rotating = options.groups == ScanGroups::kRotating;
  args.vectors = size.k_dim % 4 == 0 && HoldsVectors(args.keys, args.key_group) &&
                 HoldsVectors(args.keys, args.key_token) &&
                 HoldsVectors(args.queries, args.query_group) &&
                 HoldsVectors(args.queries, args.query_token);
  return args;
}

Status SetSkip(CallMemory& memory, std::span<const float> skip, ScanArgs& args) {
  args.skips = !skip.empty();
  if (skip.size() <= ScanArgs::kFewHeads) {
    std::ranges::copy(skip, args.few_skips);
    return Status::Ok();
  }
  KVCACHE_ASSIGN_OR_RETURN(args.skip, memory.Upload(skip));
  return Status::Ok();
}

template <int kKeys>
std::size_t SharedBytesOf(const ScanArgs& args, bool with_state) {
  return static_cast<std::size_t>(ScanSharedFloats<kKeys>(args.k_dim, with_state)) * sizeof(float);
}

// Launches the kernel for the length of keys.
Status LaunchScan(Device& device, const Grid& grid, const ScanArgs& args) {
  if (args.k_dim == 64) {
    return Launch(device, kScan64, grid, args, SharedBytesOf<64>(args, false));
  }
  if (args.k_dim == 128) {
    return Launch(device, kScan128, grid, args, SharedBytesOf<128>(args, false));
  }
  const std::size_t with_state = SharedBytesOf<0>(args, true);
  if (with_state <= kSharedBytes) return Launch(device, kScanShared, grid, args, with_state);
  const std::size_t shared = SharedBytesOf<0>(args, false);
  if (shared > device.info().shared_bytes) {
    return {StatusCode::kUnsupported,
            "state scan: keys of " + std::to_string(args.k_dim) + " values need " +
                std::to_string(shared) +
                " bytes of a block's shared memory, of which the device has " +
                std::to_string(device.info().shared_bytes)};
  }
  return Launch(device, kScanGlobal, grid, args, shared);
}

}  // namespace

Status ShortConv(Device& device, CallMemory& memory, const TensorView& x, const ConvTaps& taps,
                 const StateSegments& inputs, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckShortConv(x, taps, inputs, y));
  const bool computes = y.data != nullptr;
  const std::int64_t blocks = PartsOf(x.dims[0], kConvThreads);
  ConvArgs args{};
  args.x = x.as<const float>();
  args.x_stride = FloatStride(x, 1);
  if (computes) {
    args.y = y.as<float>();
    args.y_stride = FloatStride(y, 1);
    args.taps = taps.taps.as<const float>();
    if (taps.bias.has_value()) args.bias = taps.bias->as<const float>();
  }
  args.steps = static_cast<std::int32_t>(taps.taps.dims[0]);
  args.channels = static_cast<std::int32_t>(x.dims[0]);
  args.blocks = static_cast<std::int32_t>(blocks);
  KVCACHE_RETURN_IF_ERROR(SetSegments(memory, inputs, args.list));
  if (computes) {
    const std::vector<ConvPart> parts = PartsBehind(inputs);
    if (!parts.empty()) {
      KVCACHE_ASSIGN_OR_RETURN(args.parts, memory.Upload(std::span<const ConvPart>(parts)));
      const auto count = static_cast<std::int64_t>(parts.size());
      KVCACHE_RETURN_IF_ERROR(Launch(device, kConvParts, {.x = count * blocks}, args));
    }
  }
  return Launch(device, kConvStates, {.x = StrandCount(inputs) * blocks}, args);
}

Status DecayRates(Device& device, const TensorView& raw, const TensorView& bias,
                  const TensorView& rates, const TensorView& steps, const TensorView& decays) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckDecayRates(raw, bias, rates, steps, decays));
  const RateArgs args{.raw = raw.as<const float>(),
                      .bias = bias.as<const float>(),
                      .rates = rates.as<const float>(),
                      .steps = steps.as<float>(),
                      .decays = decays.as<float>(),
                      .raw_stride = FloatStride(raw, 1),
                      .steps_stride = FloatStride(steps, 1),
                      .decays_stride = FloatStride(decays, 1),
                      .values = raw.elements(),
                      .heads = static_cast<std::int32_t>(raw.dims[0])};
  return Launch(device, kRates, {.x = PartsOf(raw.elements(), kRateThreads)}, args);
}

Status StateScan(Device& device, CallMemory& memory, const ScanInputs& inputs,
                 const ScanOptions& options, const StateSegments& states, const TensorView& out) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckStateScan(inputs, options, states, out));
  ScanArgs args = ScanArgsOf(inputs, options, out);
  KVCACHE_RETURN_IF_ERROR(SetSkip(memory, options.skip, args));
  KVCACHE_RETURN_IF_ERROR(SetSegments(memory, states, args.list));
  return LaunchScan(device, {.x = StrandCount(states) * args.heads * args.blocks}, args);
}

}  // namespace kvcache::cuda
