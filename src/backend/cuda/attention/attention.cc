#include "backend/cuda/attention/attention.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cuda/attention/attention_kernels.h"

namespace kvcache::cuda {
namespace {

static_assert(kAttendSplit == cpu::kSplitPositions && kAttendTile == kCellTile);

// Bytes of a stage: two blocks of sixteen tiles of q8_0, or one of 32. With many rows a block of threads has
// sixteen tiles at most, and less room.
constexpr std::int32_t kStageBytes = 17408;
constexpr std::int32_t kSmallStageBytes = kStageBytes / 2;

// The kernels for any task by their rows, block types of K and block types of V.
constexpr Kernel kAttendKernels[kFirstDecode][2][2] = {
    {{{"attend_4_ff", kAttendThreads}, {"attend_4_fb", kAttendThreads}},
     {{"attend_4_bf", kAttendThreads}, {"attend_4_bb", kAttendThreads}}},
    {{{"attend_8_ff", kAttendThreads}, {"attend_8_fb", kAttendThreads}},
     {{"attend_8_bf", kAttendThreads}, {"attend_8_bb", kAttendThreads}}},
    {{{"attend_16_ff", kAttendThreads}, {"attend_16_fb", kAttendThreads}},
     {{"attend_16_bf", kAttendThreads}, {"attend_16_bb", kAttendThreads}}},
    {{{"attend_64_ff", kAttendThreads}, {"attend_64_fb", kAttendThreads}},
     {{"attend_64_bf", kAttendThreads}, {"attend_64_bb", kAttendThreads}}},
};
// The kernels that decode by their rows and types: f16, bf16, then block types of K and V.
constexpr Kernel kDecodeKernels[kTaskRows.size() - kFirstDecode][6] = {
    {{"decode_4_f16", kAttendThreads},
     {"decode_4_bf16", kAttendThreads},
     {"decode_4_q8_q8", kAttendThreads},
     {"decode_4_q8_q4", kAttendThreads},
     {"decode_4_q4_q8", kAttendThreads},
     {"decode_4_q4_q4", kAttendThreads}},
    {{"decode_8_f16", kAttendThreads},
     {"decode_8_bf16", kAttendThreads},
     {"decode_8_q8_q8", kAttendThreads},
     {"decode_8_q8_q4", kAttendThreads},
     {"decode_8_q4_q8", kAttendThreads},
     {"decode_8_q4_q4", kAttendThreads}},
};
constexpr Kernel kMergeKernels[] = {{"attention_merge_128", kMergeThreads},
                                    {"attention_merge", kMergeThreads}};
// For latents: those of 16 and 64 rows.
constexpr Kernel kLatentKernels[kFirstDecode] = {
    {}, {}, {"attend_16_latent", kAttendThreads}, {"attend_64_latent", kAttendThreads}};
constexpr Kernel kMergeLatentKernel = {"attention_merge_latent", kMergeThreads};

KvType TypeOf(DType type) {
  switch (type) {
    case DType::kF16: return KvType::kF16;
    case DType::kBF16: return KvType::kBF16;
    case DType::kQ8_0: return KvType::kQ8_0;
    case DType::kQ4_0: return KvType::kQ4_0;
    default: return KvType::kF32;
  }
}

std::int32_t FloatBytes(DType type) {
  return type == DType::kF32 ? 4 : 2;
}

// What depends on the number of rows.
struct RowPlan {
  AttendLayout layout{};
  std::int32_t pass_dims = 0;
  std::int32_t row_bytes = 0;
  std::int32_t pass_positions = 0;
  std::int32_t pass_tiles = 0;
  std::int32_t row_shift = 0;
  std::size_t shared_bytes = 0;
};

using PlansByRows = std::array<std::optional<RowPlan>, kTaskRows.size()>;

bool ValuesInTiles(const LayerKv& layer) {
  return layer.shape.v_in_k && layer.layout == KvLayout::kTiled;
}

void PlanPasses(const LayerKv& layer, int most, RowPlan& plan) {
  const std::int32_t bytes = FloatBytes(layer.v_type);
  const std::int32_t stage = plan.layout.stage_bytes;
  std::int32_t dims = std::min(most, layer.shape.v_dim);
  const std::int32_t tile_value = kAttendTile * bytes + 16;
  if (ValuesInTiles(layer) && dims * tile_value > stage) dims = stage / tile_value / 32 * 32;
  plan.pass_dims = dims;
  plan.row_bytes = cpu::RoundUp(dims * bytes, 16);
  plan.pass_positions = stage / plan.row_bytes / 4 * 4;
  plan.pass_tiles = stage / (dims * tile_value);
  plan.row_shift =
      std::min(5, static_cast<int>(std::bit_width(static_cast<unsigned>(plan.row_bytes / 16 - 1))));
}

template <int kRows, class Shape = AttendShape<kRows>>
RowPlan PlanRows(const LayerKv& layer, std::int32_t stage_bytes) {
  const std::int32_t k_dim = layer.shape.k_dim;
  const std::int32_t blocks = k_dim / 32;
  RowPlan plan;
  AttendLayout& layout = plan.layout;
  std::int32_t at = 0;
  const auto take = [&](std::int32_t bytes) {
    const std::int32_t from = at;
    at += cpu::RoundUp(bytes, 128);
    return from;
  };
  layout.code_pitch = k_dim + 16;
  if (cpu::IsKvBlockType(layer.k_type)) {
    layout.query = take(Shape::kQueries * layout.code_pitch);
    layout.units = take(blocks * Shape::kQueries * 4);
    layout.starts = take(blocks * Shape::kQueries * 4);
    layout.transformed = take(kAttendWarps * k_dim * 4);
  } else {
    layout.query = take(k_dim * kRows * 4);
  }
  if (cpu::IsKvBlockType(layer.v_type)) {
    layout.digits = take(static_cast<std::int32_t>(sizeof(WeightDigits<Shape>)));
  }
  layout.stage_bytes = stage_bytes;
  layout.stages = take(kAttendStages * stage_bytes);
  layout.bytes = at;
  plan.shared_bytes = sizeof(AttendShared<kRows>) + static_cast<std::size_t>(at);
  static_assert(sizeof(AttendShared<kRows>) % 16 == 0);
  PlanPasses(layer, Shape::kPassDims, plan);
  return plan;
}

std::optional<RowPlan> PlanForLatents(const LayerKv& layer, std::size_t i,
                                      std::size_t shared_bytes) {
  if (i >= kFirstDecode || kTaskRows[i] < 16) return std::nullopt;
  const RowPlan plan = kTaskRows[i] == 16 ? PlanRows<16, LatentShape<16>>(layer, kSmallStageBytes)
                                          : PlanRows<64, LatentShape<64>>(layer, kSmallStageBytes);
  if (plan.shared_bytes > shared_bytes) return std::nullopt;
  return plan;
}

bool IsDecodable(const LayerKv& layer) {
  const KvShape& shape = layer.shape;
  if (layer.layout != KvLayout::kTiled || shape.v_in_k || shape.v_dim > kMaxDecodeDims)
    return false;
  if (cpu::IsKvBlockType(layer.k_type)) return cpu::IsKvBlockType(layer.v_type);
  const auto aligned = [](const std::byte* at) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  };
  return (layer.k_type == DType::kF16 || layer.k_type == DType::kBF16) &&
         layer.v_type == layer.k_type && shape.k_dim % kDecodeDepth == 0 &&
         shape.v_dim % kDecodeDims == 0 && aligned(layer.k) && aligned(layer.v);
}

template <int kRows>
RowPlan PlanDecode(const LayerKv& layer) {
  const std::int32_t k_dim = layer.shape.k_dim;
  const std::int32_t v_blocks = layer.shape.v_dim / 32;
  RowPlan plan;
  AttendLayout& layout = plan.layout;
  std::int32_t at = 0;
  const auto take = [&](std::int32_t bytes) {
    const std::int32_t from = at;
    at += cpu::RoundUp(bytes, 128);
    return from;
  };
  if (cpu::IsKvBlockType(layer.k_type)) {
    constexpr std::int32_t kQueries = 8;
    const std::int32_t k_blocks = k_dim / 32;
    const std::int32_t code_bytes = layer.k_type == DType::kQ8_0 ? 512 : 256;
    layout.code_pitch = k_dim + 16;
    layout.query = take(kQueries * layout.code_pitch);
    layout.units = take(k_blocks * kQueries * 4);
    layout.starts = take(k_blocks * kQueries * 4);
    layout.transformed = take(kAttendWarps * k_dim * 4);
    layout.digits = take(v_blocks * static_cast<std::int32_t>(sizeof(DecodeDigits<kRows>)));
    layout.stages = take(kAttendTile * k_blocks * (code_bytes + 32));
    layout.values = take(2 * v_blocks * kAttendTile * kHalfBlockBytes);
    layout.scales = take(v_blocks * kAttendTile * 32);
  } else {
    layout.query = take(k_dim * kRows * 4);
    layout.stages = take(kAttendWarps * kDecodeRing<kRows> * kDecodeChunkBytes);
  }
  layout.bytes = at;
  plan.shared_bytes = sizeof(DecodeShared<kRows>) + static_cast<std::size_t>(at);
  static_assert(sizeof(DecodeShared<kRows>) % 16 == 0);
  return plan;
}

std::optional<RowPlan> PlanDecode(const LayerKv& layer, int rows, std::size_t shared_bytes) {
  if (!IsDecodable(layer)) return std::nullopt;
  const RowPlan plan = rows == 4 ? PlanDecode<4>(layer) : PlanDecode<8>(layer);
  if (plan.shared_bytes > shared_bytes) return std::nullopt;
  return plan;
}

// The plan for place i of kTaskRows if it fits into a block's shared memory.
std::optional<RowPlan> PlanFor(const LayerKv& layer, std::size_t i, std::size_t shared_bytes) {
  if (cpu::HoldsLatents(layer)) return PlanForLatents(layer, i, shared_bytes);
  if (i >= kFirstDecode) return PlanDecode(layer, kTaskRows[i], shared_bytes);
  const bool blocks = cpu::IsKvBlockType(layer.k_type) || cpu::IsKvBlockType(layer.v_type);
  for (const std::int32_t stage : {kStageBytes, kSmallStageBytes}) {
    if (stage == kSmallStageBytes && blocks && kTaskRows[i] <= 16) break;
    if (stage == kStageBytes && kTaskRows[i] > 16) continue;
    RowPlan plan;
    switch (kTaskRows[i]) {
      case 4: plan = PlanRows<4>(layer, stage); break;
      case 8: plan = PlanRows<8>(layer, stage); break;
      case 16: plan = PlanRows<16>(layer, stage); break;
      default: plan = PlanRows<64>(layer, stage); break;
    }
    if (plan.shared_bytes <= shared_bytes) return plan;
  }
  return std::nullopt;
}

// The arguments that do not depend on the number of rows.
AttendArgs CommonArgs(const LayerKv& layer, const TensorView& q, const AttentionOptions& options) {
  const KvShape& shape = layer.shape;
  const bool tiled = layer.layout == KvLayout::kTiled;
  const std::int64_t v_row = shape.v_in_k ? shape.k_dim : shape.v_dim;
  AttendArgs args{};
  args.q = q.as<const float>();
  args.k = reinterpret_cast<const std::uint8_t*>(layer.k);
  args.v = reinterpret_cast<const std::uint8_t*>(shape.v_in_k ? layer.k : layer.v);
  args.cells = layer.cells;
  args.k_head = shape.k_dim;
  args.k_cell = std::int64_t{shape.k_dim} * shape.kv_heads;
  args.v_head = tiled ? layer.cells * v_row : v_row;
  args.v_cell = tiled ? v_row : v_row * shape.kv_heads;
  args.v_value = 1;
  if (layer.v_transposed) {
    args.v_head = layer.cells * shape.v_dim;
    args.v_cell = 1;
    args.v_value = layer.cells;
  }
  args.partial_floats = cpu::PartialStride(shape.v_dim);
  args.heads = static_cast<std::int32_t>(q.dims[1]);
  args.group = args.heads / shape.kv_heads;
  args.k_dim = shape.k_dim;
  args.v_dim = shape.v_dim;
  args.k_type = TypeOf(layer.k_type);
  args.v_type = TypeOf(layer.v_type);
  args.tiled = tiled ? 1 : 0;
  args.values_in_tiles = ValuesInTiles(layer) ? 1 : 0;
  args.past = options.bias.past;
  args.distances = options.bias.past + 1 + options.bias.future;
  args.scale = options.scale;
  args.soft_cap = options.soft_cap;
  return args;
}

void SetRows(const LayerKv& layer, const RowPlan& plan, AttendArgs& args) {
  args.pass_dims = plan.pass_dims;
  args.row_bytes = plan.row_bytes;
  args.pass_positions = plan.pass_positions;
  args.pass_tiles = plan.pass_tiles;
  args.row_shift = plan.row_shift;
  args.layout = plan.layout;
  const std::int64_t bytes = FloatBytes(layer.v_type);
  const auto whole = [&](std::int64_t values) { return values * bytes % 16 == 0; };
  const bool copy = args.values_in_tiles == 0 && !layer.v_transposed && whole(layer.shape.v_dim) &&
                    whole(plan.pass_dims) && whole(args.v_head) && whole(args.v_cell) &&
                    reinterpret_cast<std::uintptr_t>(args.v) % 16 == 0;
  args.copy_values = copy ? 1 : 0;
}

// The kernel for place i of kTaskRows.
const Kernel& KernelOf(const LayerKv& layer, std::size_t i) {
  if (cpu::HoldsLatents(layer)) return kLatentKernels[i];
  const bool k_blocks = cpu::IsKvBlockType(layer.k_type);
  const bool v_blocks = cpu::IsKvBlockType(layer.v_type);
  if (i < kFirstDecode) return kAttendKernels[i][k_blocks ? 1 : 0][v_blocks ? 1 : 0];
  const auto& kernels = kDecodeKernels[i - kFirstDecode];
  if (!k_blocks) return kernels[layer.k_type == DType::kBF16 ? 1 : 0];
  const auto nibbles = [](DType type) { return type == DType::kQ4_0 ? 1 : 0; };
  return kernels[2 + 2 * nibbles(layer.k_type) + nibbles(layer.v_type)];
}

// Blocks of the kernels that decode that a processor runs at once. A processor has
// 1 KB of shared memory more than a block may have, and each block takes 1 KB more than it asks for.
int BlocksAtOnce(const Device& device, const PlansByRows& plans, int group) {
  constexpr std::size_t kOfBlock = std::size_t{1} << 10;
  const std::optional<RowPlan>& decode =
      plans[kFirstDecode + (group > kTaskRows[kFirstDecode] ? 1 : 0)];
  if (!decode.has_value()) return 2;
  const std::size_t room = device.info().shared_bytes + kOfBlock;
  return std::clamp(static_cast<int>(room / (decode->shared_bytes + kOfBlock)), 1, kDecodeBlocks);
}

// The values in the call's memory, or null if there are none.
Result<const float*> UploadIfAny(CallMemory& memory, std::span<const float> values) {
  if (values.empty()) return static_cast<const float*>(nullptr);
  return memory.Upload(values);
}

Status LaunchMerge(Device& device, const PlacedRound& plan, const AttendArgs& of, bool latents,
                   const float* sinks, const TensorView& out) {
  const MergeArgs args{.tokens = plan.merge_tokens,
                       .steps = plan.merge_steps,
                       .partials = of.partials,
                       .sinks = sinks,
                       .out = out.as<float>(),
                       .partial_floats = of.partial_floats,
                       .heads = of.heads,
                       .group = of.group,
                       .v_dim = of.v_dim};
  const bool many = of.v_dim > kMergeThreads || latents;
  const std::int64_t dims = kMergeThreads * (many ? kMergeDims : 1);
  return Launch(device, latents ? kMergeLatentKernel : kMergeKernels[many ? 1 : 0],
                Grid{.x = plan.merge_token_count, .y = of.heads, .z = (of.v_dim + dims - 1) / dims},
                args, latents ? sizeof(MergeLatentShared) : sizeof(MergeShared));
}

Status LaunchRound(Device& device, const LayerKv& layer, const PlacedRound& round,
                   const PlansByRows& plans, AttendArgs args) {
  args.tokens = round.tokens;
  args.runs = round.runs;
  args.splits = round.splits;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (round.tasks[i].count == 0) continue;
    args.tasks = round.tasks[i].first;
    SetRows(layer, *plans[i], args);
    KVCACHE_RETURN_IF_ERROR(Launch(device, KernelOf(layer, i), Grid{.x = round.tasks[i].count},
                                   args, plans[i]->shared_bytes));
  }
  return Status::Ok();
}

}  // namespace

Status Attention(Device& device, CallMemory& memory, AttentionPlans& plans, const LayerKv& layer,
                 const TensorView& q, const Visibility& visibility, const AttentionOptions& options,
                 const TensorView& out) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckAttention(layer, q, options, out));
  KVCACHE_RETURN_IF_ERROR(cpu::CheckVisibility(layer, q.dims[2], visibility));
  if (q.dims[2] == 0) return Status::Ok();
  PlansByRows by_rows;
  UsableRows usable{};
  for (std::size_t i = 0; i < by_rows.size(); ++i) {
    by_rows[i] = PlanFor(layer, i, device.info().shared_bytes);
    usable[i] = by_rows[i].has_value();
  }
  if (std::find(usable.begin(), usable.begin() + kFirstDecode, true) ==
      usable.begin() + kFirstDecode) {
    return {StatusCode::kUnsupported, "attention: heads of " + std::to_string(layer.shape.k_dim) +
                                          " and " + std::to_string(layer.shape.v_dim) +
                                          " values do not fit into the " +
                                          std::to_string(device.info().shared_bytes) +
                                          " bytes of shared memory of " + device.info().name};
  }
  const bool latents = cpu::HoldsLatents(layer);
  AttendArgs args = CommonArgs(layer, q, options);
  KVCACHE_ASSIGN_OR_RETURN(const PlacedPlan* const plan,
                           plans.Find(device, {layer, args.group, usable, visibility,
                                               BlocksAtOnce(device, by_rows, args.group)}));
  KVCACHE_ASSIGN_OR_RETURN(
      std::byte* const partials,
      memory.Take(static_cast<std::size_t>(plan->partial_floats) * sizeof(float)));
  KVCACHE_ASSIGN_OR_RETURN(args.bias, UploadIfAny(memory, options.bias.values));
  KVCACHE_ASSIGN_OR_RETURN(const float* const sinks, UploadIfAny(memory, options.sinks));
  args.partials = reinterpret_cast<float*>(partials);
  for (const PlacedRound& round : plan->rounds) {
    KVCACHE_RETURN_IF_ERROR(LaunchRound(device, layer, round, by_rows, args));
    KVCACHE_RETURN_IF_ERROR(LaunchMerge(device, round, args, latents, sinks, out));
  }
  return Status::Ok();
}

}  // namespace kvcache::cuda
