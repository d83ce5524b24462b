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
    if (block::IsBlockType(weight.dtype()) || !UsesPanels()) {
      totals.row_panels += block::Panels(weight.outputs());
      continue;
    }
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
                           std::int64_t first_prepare_task) {
  for (block::QuantizedX& quantized : quantized_) {
    quantized.Place(base);
    base += quantized.Bytes();
  }
  packed_ = reinterpret_cast<float*>(base);
  // Tasks large enough that starting one is cheap, and small enough that threads finish together.
  constexpr std::int64_t kDecodeTasksPerThread = 16;
  constexpr std::int64_t kMinBytes = 32 << 10;
  constexpr std::int64_t kMaxBytes = 512 << 10;
  const int threads = totals.pool->threads();
  task_bytes_ =
      std::clamp(totals.weight_bytes / (kDecodeTasksPerThread * threads), kMinBytes, kMaxBytes);
  // Kernels multiply two panels at once, but a panel is enough where threads would have nothing to do.
  const bool has_pairs = totals.row_panels >= 4 * std::int64_t{threads};
  step_rows_ = (has_pairs ? 2 : 1) * block::kPanelRows;
  if (UsesPanels()) {
    packed_tiles_ = flt::PackedTiles(tokens_);
    // With few outputs and many threads, several threads take the same panel, for different tokens.
    constexpr std::int64_t kTasksPerThread = 4;
    const std::int64_t wanted = (kTasksPerThread * threads + totals.panels - 1) / totals.panels;
    tile_splits_ = std::clamp<std::int64_t>(wanted, 1, packed_tiles_);
  }
  first_prepare_task_ = first_prepare_task;
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
  const std::int64_t row_bytes = BytesOf(weight.dtype(), inputs_);
  return std::max<std::int64_t>(1, task_bytes_ / row_bytes / step_rows_) * step_rows_;
}

std::int64_t LinearGroupWork::Tasks(const LinearOutput& output, const RowsOfMatrix& rows) const {
  const LinearWeight& weight = *output.weight;
  if (!block::IsBlockType(weight.dtype()) && UsesPanels()) {
    return (PanelsOf(rows.end, inputs_) - PanelsOf(rows.begin, inputs_)) * tile_splits_;
  }
  const std::int64_t at_once = RowsPerTask(weight);
  return (rows.end - rows.begin + at_once - 1) / at_once;
}

std::int64_t LinearGroupWork::Tasks(const LinearTotals& totals, int node) const {
  if (tokens_ == 0) return 0;
  std::int64_t tasks = 0;
  for (const LinearOutput& output : outputs_) {
    tasks += Tasks(output, RowsOfNode(*totals.pool, *output.weight, output.matrix, node));
  }
  return tasks;
}

void LinearGroupWork::RunPanelTask(const LinearOutput& output, std::int64_t panel,
                                   std::int64_t part, std::byte* workspace) const {
  const flt::PanelProduct product{
      .w = static_cast<const FloatWeight&>(*output.weight).weights(output.matrix),
      .packed = packed_,
      .tokens = tokens_,
      .y = output.y.as<float>()};
  flt::MultiplyPanel(product, panel, part * packed_tiles_ / tile_splits_,
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
                              const RowsOfMatrix& rows, std::int64_t task, int thread) const {
  std::byte* const workspace = totals.thread_memory + thread * totals.thread_bytes;
  const bool is_block = block::IsBlockType(output.weight->dtype());
  if (!is_block && UsesPanels()) {
    // A panel that has rows of two nodes belongs to the first.
    return RunPanelTask(output, PanelsOf(rows.begin, inputs_) + task / tile_splits_,
                        task % tile_splits_, workspace);
  }
  const std::int64_t at_once = RowsPerTask(*output.weight);
  const std::int64_t begin = rows.begin + task * at_once;
  const std::int64_t end = std::min(begin + at_once, rows.end);
  if (is_block) return RunBlockTask(output, begin, end, workspace);
  const auto& weight = static_cast<const FloatWeight&>(*output.weight);
  flt::MultiplyRows(weight.weights(output.matrix), x_, tokens_, output.y.as<float>(), begin, end);
}

void LinearGroupWork::Run(const LinearTotals& totals, int node, std::int64_t task,
                          int thread) const {
  for (const LinearOutput& output : outputs_) {
    const RowsOfMatrix rows = RowsOfNode(*totals.pool, *output.weight, output.matrix, node);
    const std::int64_t tasks = Tasks(output, rows);
    if (task < tasks) return RunTask(totals, output, rows, task, thread);
    task -= tasks;
  }
}

Status LinearCall::Reserve(Workspace& workspace) {
  static_assert(std::is_trivially_destructible_v<LinearGroupWork> &&
                std::is_trivially_destructible_v<LinearPart>);
  totals_.pool = &pool_;
  std::int64_t group_bytes = 0;
  for (const LinearGroup& request : requests_) {
    const LinearGroupWork group(request);
    group.AddTo(totals_);
    group_bytes += group.WorkspaceBytes();
  }
  const auto count = static_cast<std::int64_t>(requests_.size());
  const std::int64_t list_bytes =
      AlignedBytes(count * static_cast<std::int64_t>(sizeof(LinearGroupWork)));
  const std::int64_t parts_bytes =
      AlignedBytes(pool_.nodes() * count * static_cast<std::int64_t>(sizeof(LinearPart)));
  const std::int64_t threads_bytes = pool_.threads() * totals_.thread_bytes;
  KVCACHE_ASSIGN_OR_RETURN(
      std::byte * at, workspace.Reserve(static_cast<std::size_t>(list_bytes + parts_bytes +
                                                                 threads_bytes + group_bytes)));
  auto* const list = reinterpret_cast<LinearGroupWork*>(at);
  at += list_bytes;
  auto* const parts = reinterpret_cast<LinearPart*>(at);
  at += parts_bytes;
  totals_.thread_memory = at;
  at += threads_bytes;
  std::int64_t first_prepare_task = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    auto* const group = new (list + i) LinearGroupWork(requests_[static_cast<std::size_t>(i)]);
    group->Bind(at, totals_, first_prepare_task);
    at += group->WorkspaceBytes();
    first_prepare_task = group->prepare_end();
  }
  groups_ = {list, static_cast<std::size_t>(count)};
  NumberTasks(parts);
  return Status::Ok();
}

void LinearCall::NumberTasks(LinearPart* parts) {
  std::size_t count = 0;
  std::int64_t tasks = 0;
  for (int node = 0; node < pool_.nodes(); ++node) {
    for (const LinearGroupWork& group : groups_) {
      const std::int64_t first = tasks;
      tasks += group.Tasks(totals_, node);
      new (parts + count) LinearPart{&group, node, first, tasks};
      ++count;
    }
    ends_[static_cast<std::size_t>(node)] = tasks;
  }
  parts_ = {parts, count};
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
  pool_.ParallelFor(ends_, [this](std::int64_t task, int thread) {
    const LinearPart& part = *std::ranges::upper_bound(parts_, task, {}, &LinearPart::end);
    part.group->Run(totals_, part.node, task - part.first_task, thread);
  });
}

}  // namespace kvcache::cpu
