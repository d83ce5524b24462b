#include "backend/cpu/linear/linear_call.h"

#include <algorithm>
#include <new>
#include <type_traits>

#include "backend/cpu/linear/linear_weight.h"

namespace kvcache::cpu {
namespace {

// Activations with at least this many values are prepared by several threads.
constexpr std::int64_t kMinSharedValues = 16'384;

std::int64_t AlignedBytes(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

std::int64_t PanelsOf(std::int64_t outputs, std::int64_t inputs) {
  return (outputs + flt::PanelRows(inputs) - 1) / flt::PanelRows(inputs);
}

}  // namespace

LinearGroupWork::LinearGroupWork(const LinearGroup& group)
    : x_(group.x.as<const float>()),
      inputs_(group.x.dims[0]),
      tokens_(group.x.dims[1]),
      outputs_(group.outputs) {
  for (const LinearOutput& output : outputs_) {
    const DType dtype = output.weight->dtype();
    if (!block::IsBlockType(dtype)) {
      any_float_ = true;
      continue;
    }
    any_block_ = true;
    const block::InputScales kind = block::InputScalesOf(dtype);
    block::QuantizedX& quantized = quantized_[static_cast<std::size_t>(kind)];
    quantized.inputs = inputs_;
    quantized.tokens = tokens_;
    quantized.kind = kind;
  }
}

void LinearGroupWork::AddTo(LinearTotals& totals) const {
  if (any_block_) {
    totals.thread_bytes = std::max(totals.thread_bytes, block::PanelWorkspaceBytes(tokens_));
  }
  for (const LinearOutput& output : outputs_) {
    const LinearWeight& weight = *output.weight;
    totals.weight_bytes += BytesOf(weight.dtype(), inputs_ * weight.outputs());
    if (block::IsBlockType(weight.dtype()) || !UsesPanels()) continue;
    totals.panels += PanelsOf(weight.outputs(), inputs_);
    totals.thread_bytes =
        std::max(totals.thread_bytes, AlignedBytes(flt::PanelFloats(inputs_) * 4));
  }
}

std::int64_t LinearGroupWork::WorkspaceBytes() const {
  std::int64_t bytes = UsesPanels() ? AlignedBytes(flt::PackedFloats(inputs_, tokens_) * 4) : 0;
  for (const block::QuantizedX& quantized : quantized_) bytes += quantized.Bytes();
  return bytes;
}

void LinearGroupWork::Bind(std::byte* base, const LinearTotals& totals,
                           std::int64_t first_prepare_task, std::int64_t first_task) {
  for (block::QuantizedX& quantized : quantized_) {
    quantized.Place(base);
    base += quantized.Bytes();
  }
  packed_ = reinterpret_cast<float*>(base);
  // Tasks large enough that starting one is cheap, and small enough that threads finish together.
  constexpr std::int64_t kDecodeTasksPerThread = 16;
  constexpr std::int64_t kMinBytes = 32 << 10;
  constexpr std::int64_t kMaxBytes = 512 << 10;
  task_bytes_ = std::clamp(totals.weight_bytes / (kDecodeTasksPerThread * totals.threads),
                           kMinBytes, kMaxBytes);
  if (UsesPanels()) {
    packed_tiles_ = flt::PackedTiles(tokens_);
    // With few outputs and many threads, several threads take the same panel, for different tokens.
    constexpr std::int64_t kTasksPerThread = 4;
    const std::int64_t wanted =
        (kTasksPerThread * totals.threads + totals.panels - 1) / totals.panels;
    tile_splits_ = std::clamp<std::int64_t>(wanted, 1, packed_tiles_);
  }
  first_prepare_task_ = first_prepare_task;
  first_task_ = first_task;
  if (tokens_ == 0) return;
  for (const LinearOutput& output : outputs_) tasks_ += Tasks(*output.weight);
}

// Quantises one token, or packs one tile of tokens.
void LinearGroupWork::Prepare(std::int64_t task) const {
  task -= first_prepare_task_;
  if (any_block_ && task < tokens_) {
    for (const block::QuantizedX& quantized : quantized_) {
      if (quantized.tokens > 0) block::QuantizeToken(x_ + task * inputs_, task, quantized);
    }
    return;
  }
  if (any_block_) task -= tokens_;
  flt::PackTile(x_, inputs_, tokens_, task, packed_);
}

std::int64_t LinearGroupWork::RowsPerTask(const LinearWeight& weight) const {
  constexpr std::int64_t kStep = 2 * block::kPanelRows;
  const std::int64_t row_bytes = BytesOf(weight.dtype(), inputs_);
  return std::max<std::int64_t>(1, task_bytes_ / row_bytes / kStep) * kStep;
}

std::int64_t LinearGroupWork::Tasks(const LinearWeight& weight) const {
  if (!block::IsBlockType(weight.dtype()) && UsesPanels()) {
    return PanelsOf(weight.outputs(), inputs_) * tile_splits_;
  }
  const std::int64_t rows = RowsPerTask(weight);
  return (weight.outputs() + rows - 1) / rows;
}

void LinearGroupWork::RunPanelTask(const LinearOutput& output, std::int64_t task,
                                   std::byte* workspace) const {
  const std::int64_t part = task % tile_splits_;
  const flt::PanelProduct product{
      .w = static_cast<const FloatWeight&>(*output.weight).weights(output.matrix),
      .packed = packed_,
      .tokens = tokens_,
      .y = output.y.as<float>()};
  flt::MultiplyPanel(product, task / tile_splits_, part * packed_tiles_ / tile_splits_,
                     (part + 1) * packed_tiles_ / tile_splits_,
                     reinterpret_cast<float*>(workspace));
}

void LinearGroupWork::RunBlockTask(const LinearOutput& output, std::int64_t begin, std::int64_t end,
                                   std::byte* workspace) const {
  const auto& weight = static_cast<const BlockWeight&>(*output.weight);
  const auto kind = static_cast<std::size_t>(block::InputScalesOf(weight.dtype()));
  const block::Product product{.dtype = weight.dtype(),
                               .panels = weight.panels(output.matrix),
                               .outputs = weight.outputs(),
                               .x = quantized_[kind],
                               .y = output.y.as<float>()};
  block::MultiplyPanels(product, begin / block::kPanelRows, block::Panels(end), workspace);
}

void LinearGroupWork::RunTask(const LinearTotals& totals, const LinearOutput& output,
                              std::int64_t task, int thread) const {
  const std::int64_t rows = RowsPerTask(*output.weight);
  const std::int64_t begin = task * rows;
  const std::int64_t end = std::min(begin + rows, output.weight->outputs());
  std::byte* const workspace = totals.thread_memory + thread * totals.thread_bytes;
  if (block::IsBlockType(output.weight->dtype())) {
    return RunBlockTask(output, begin, end, workspace);
  }
  if (UsesPanels()) return RunPanelTask(output, task, workspace);
  const auto& weight = static_cast<const FloatWeight&>(*output.weight);
  flt::MultiplyRows(weight.weights(output.matrix), x_, tokens_, output.y.as<float>(), begin, end);
}

void LinearGroupWork::Run(const LinearTotals& totals, std::int64_t task, int thread) const {
  task -= first_task_;
  for (const LinearOutput& output : outputs_) {
    const std::int64_t tasks = Tasks(*output.weight);
    if (task < tasks) return RunTask(totals, output, task, thread);
    task -= tasks;
  }
}

Status LinearCall::Reserve(Workspace& workspace) {
  static_assert(std::is_trivially_destructible_v<LinearGroupWork>);
  totals_.threads = pool_.threads();
  std::int64_t group_bytes = 0;
  for (const LinearGroup& request : requests_) {
    const LinearGroupWork group(request);
    group.AddTo(totals_);
    group_bytes += group.WorkspaceBytes();
  }
  const auto count = static_cast<std::int64_t>(requests_.size());
  const std::int64_t list_bytes =
      AlignedBytes(count * static_cast<std::int64_t>(sizeof(LinearGroupWork)));
  const std::int64_t threads_bytes = totals_.threads * totals_.thread_bytes;
  KVCACHE_ASSIGN_OR_RETURN(
      std::byte * at,
      workspace.Reserve(static_cast<std::size_t>(list_bytes + threads_bytes + group_bytes)));
  auto* const list = reinterpret_cast<LinearGroupWork*>(at);
  totals_.thread_memory = at + list_bytes;
  at += list_bytes + threads_bytes;
  std::int64_t first_prepare_task = 0;
  std::int64_t first_task = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    auto* const group = new (list + i) LinearGroupWork(requests_[static_cast<std::size_t>(i)]);
    group->Bind(at, totals_, first_prepare_task, first_task);
    at += group->WorkspaceBytes();
    first_prepare_task = group->prepare_end();
    first_task = group->end();
  }
  groups_ = {list, static_cast<std::size_t>(count)};
  return Status::Ok();
}

void LinearCall::Prepare() const {
  const std::int64_t tasks = groups_.back().prepare_end();
  std::int64_t values = 0;
  for (const LinearGroupWork& group : groups_) values += group.values();
  const auto prepare = [this](std::int64_t task, int) {
    std::ranges::upper_bound(groups_, task, {}, &LinearGroupWork::prepare_end)->Prepare(task);
  };
  if (values < kMinSharedValues) {
    for (std::int64_t task = 0; task < tasks; ++task) prepare(task, 0);
  } else {
    pool_.ParallelFor(tasks, prepare);
  }
}

void LinearCall::Run() const {
  pool_.ParallelFor(groups_.back().end(), [this](std::int64_t task, int thread) {
    std::ranges::upper_bound(groups_, task, {}, &LinearGroupWork::end)->Run(totals_, task, thread);
  });
}

}  // namespace kvcache::cpu
