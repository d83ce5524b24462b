#include "backend/cuda/attention/attention.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/attention_tasks.h"

namespace kvcache::cuda {
namespace {

static_assert(kAttendSplit == cpu::kSplitPositions && kAttendTile == kCellTile);

// Bytes of a stage: two blocks of sixteen tiles of q8_0, or one of 32. With many rows a block of threads has
// sixteen tiles at most, and less room.
constexpr std::int32_t kStageBytes = 17408;
constexpr std::int32_t kSmallStageBytes = kStageBytes / 2;

// The kernels by their rows, block types of K and block types of V.
constexpr Kernel kAttendKernels[kTaskRows.size()][2][2] = {
    {{{"attend_4_ff", kAttendThreads}, {"attend_4_fb", kAttendThreads}},
     {{"attend_4_bf", kAttendThreads}, {"attend_4_bb", kAttendThreads}}},
    {{{"attend_8_ff", kAttendThreads}, {"attend_8_fb", kAttendThreads}},
     {{"attend_8_bf", kAttendThreads}, {"attend_8_bb", kAttendThreads}}},
    {{{"attend_16_ff", kAttendThreads}, {"attend_16_fb", kAttendThreads}},
     {{"attend_16_bf", kAttendThreads}, {"attend_16_bb", kAttendThreads}}},
    {{{"attend_64_ff", kAttendThreads}, {"attend_64_fb", kAttendThreads}},
     {{"attend_64_bf", kAttendThreads}, {"attend_64_bb", kAttendThreads}}},
};
constexpr Kernel kMergeKernel = {"attention_merge", kMergeThreads};

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

template <int kRows>
RowPlan PlanRows(const LayerKv& layer, std::int32_t stage_bytes) {
  using Shape = AttendShape<kRows>;
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

// The plan for place i of kTaskRows if it fits into a block's shared memory.
std::optional<RowPlan> PlanFor(const LayerKv& layer, std::size_t i, std::size_t shared_bytes) {
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

// All arrays of a call behind one another, to be copied to the device at once.
class Arrays {
 public:
  explicit Arrays(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }

  // Returns the offset.
  template <class T>
  std::size_t Add(std::span<const T> values) {
    const std::size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return at;
  }
  template <class T>
  std::size_t Add(const std::vector<T>& values) {
    return Add(std::span<const T>(values));
  }

 private:
  std::vector<std::byte>& bytes_;
};

// The addresses of a call's arrays.
struct ArrayPlaces {
  std::array<std::size_t, kTaskRows.size()> tasks{};
  std::size_t tokens = 0;
  std::size_t runs = 0;
  std::size_t splits = 0;
  std::size_t merge_tokens = 0;
  std::size_t merge_steps = 0;
  std::size_t bias = 0;
  std::size_t sinks = 0;
};

ArrayPlaces AddArrays(const AttentionTasks& tasks, const AttentionOptions& options,
                      std::vector<std::byte>& bytes) {
  Arrays arrays(bytes);
  ArrayPlaces places;
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i) places.tasks[i] = arrays.Add(tasks.tasks[i]);
  places.tokens = arrays.Add(tasks.tokens);
  places.runs = arrays.Add(tasks.runs);
  places.splits = arrays.Add(tasks.splits);
  places.merge_tokens = arrays.Add(tasks.merge_tokens);
  places.merge_steps = arrays.Add(tasks.merge_steps);
  places.bias = arrays.Add(options.bias.values);
  places.sinks = arrays.Add(options.sinks);
  return places;
}

template <class T>
const T* At(const std::byte* base, std::size_t offset) {
  return reinterpret_cast<const T*>(base + offset);
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

Status LaunchMerge(Device& device, const AttentionTasks& tasks, const AttendArgs& of,
                   const std::byte* base, const ArrayPlaces& places, bool sinks,
                   const TensorView& out) {
  const MergeArgs args{.tokens = At<MergeToken>(base, places.merge_tokens),
                       .steps = At<MergeStep>(base, places.merge_steps),
                       .partials = of.partials,
                       .sinks = sinks ? At<float>(base, places.sinks) : nullptr,
                       .out = out.as<float>(),
                       .partial_floats = of.partial_floats,
                       .heads = of.heads,
                       .group = of.group,
                       .v_dim = of.v_dim};
  constexpr std::int64_t kDims = kMergeThreads * kMergeDims;
  return Launch(device, kMergeKernel,
                Grid{.x = static_cast<std::int64_t>(tasks.merge_tokens.size()),
                     .y = of.heads,
                     .z = (of.v_dim + kDims - 1) / kDims},
                args, sizeof(MergeShared));
}

}  // namespace

Status Attention(Device& device, CallMemory& memory, AttentionWorkspace& workspace,
                 const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                 const AttentionOptions& options, const TensorView& out) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckAttention(layer, q, visibility, options, out));
  if (q.dims[2] == 0) return Status::Ok();
  std::array<std::optional<RowPlan>, kTaskRows.size()> plans;
  UsableRows usable{};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    plans[i] = PlanFor(layer, i, device.info().shared_bytes);
    usable[i] = plans[i].has_value();
  }
  if (std::find(usable.begin(), usable.end(), true) == usable.end()) {
    return {StatusCode::kUnsupported, "attention: heads of " + std::to_string(layer.shape.k_dim) +
                                          " and " + std::to_string(layer.shape.v_dim) +
                                          " values do not fit into the " +
                                          std::to_string(device.info().shared_bytes) +
                                          " bytes of shared memory of " + device.info().name};
  }
  AttendArgs args = CommonArgs(layer, q, options);
  const int wanted = 2 * std::max(1, device.info().processors);  // tasks: as many as run at once
  const int threads = std::max(1, wanted / static_cast<int>(cpu::kTasksPerThread));
  workspace.plan.Build(layer, args.group, threads, visibility);
  const AttentionTasks tasks =
      MakeAttentionTasks(workspace.plan, layer, args.group, visibility, usable, wanted);
  const ArrayPlaces places = AddArrays(tasks, options, workspace.arrays);
  KVCACHE_ASSIGN_OR_RETURN(const std::byte* const base,
                           memory.Upload(std::span<const std::byte>(workspace.arrays)));
  KVCACHE_ASSIGN_OR_RETURN(
      std::byte* const partials,
      memory.Take(static_cast<std::size_t>(tasks.partial_floats) * sizeof(float)));
  args.tokens = At<AttendToken>(base, places.tokens);
  args.runs = At<AttendRun>(base, places.runs);
  args.splits = At<std::int32_t>(base, places.splits);
  args.bias = options.bias.values.empty() ? nullptr : At<float>(base, places.bias);
  args.partials = reinterpret_cast<float*>(partials);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (tasks.tasks[i].empty()) continue;
    args.tasks = At<AttendTask>(base, places.tasks[i]);
    SetRows(layer, *plans[i], args);
    const Kernel& kernel = kAttendKernels[i][cpu::IsKvBlockType(layer.k_type) ? 1 : 0]
                                         [cpu::IsKvBlockType(layer.v_type) ? 1 : 0];
    KVCACHE_RETURN_IF_ERROR(Launch(device, kernel,
                                   Grid{.x = static_cast<std::int64_t>(tasks.tasks[i].size())},
                                   args, plans[i]->shared_bytes));
  }
  return LaunchMerge(device, tasks, args, base, places, !options.sinks.empty(), out);
}

}  // namespace kvcache::cuda
