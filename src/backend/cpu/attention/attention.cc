#include "backend/cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "backend/cpu/attention/attention_kernels.h"
#include "base/step_parts.h"

namespace kvcache::cpu {
namespace {

// The state of one call. The workspace holds one piece per thread, then the partial results of all
// (node, KV head).
struct Job {
  const AttentionCall& call;
  const Visibility& visibility;
  AttentionPlan& plan;
  const ThreadPool& pool;
  const ThreadPool::Ends& ends;  // of the nodes' tasks
  float* workspace;
  std::int64_t thread_floats;
  float* partials;

  float* OfThread(int thread) const { return workspace + thread * thread_floats; }
};

std::int64_t ThreadFloats(const LayerKv& layer, const AttentionPlan& plan) {
  const std::int64_t block =
      plan.prefill_rows() > 0 ? PrefillWorkspaceFloats(layer, plan.prefill_rows()) : 0;
  const std::int64_t split =
      plan.decode_rows() > 0 ? DecodeWorkspaceFloats(layer, plan.decode_rows()) : 0;
  return RoundUp<std::int64_t>(std::max(block, split), kCellTile);
}

void WriteZeros(const AttentionCall& call, std::span<const QueryToken> tokens, int kv_head) {
  const int group = call.group();
  for (const QueryToken& token : tokens) {
    std::fill_n(call.Out(token.index, kv_head * group),
                std::int64_t{group} * call.layer->shape.v_dim, 0.0f);
  }
}

std::span<const HistoryRun> RunsOf(const Job& job, const SequencePlan& sequence) {
  return job.visibility.histories[static_cast<std::size_t>(sequence.history)];
}

std::span<const HistoryRun> RunsOf(const Job& job, const PrefixNode& node) {
  return RunsOf(job, job.plan.SequencesOf(node).front());
}

const PrefixNode& NodeAt(const Job& job, std::int32_t index) {
  return job.plan.nodes()[static_cast<std::size_t>(index)];
}

// The range of positions that a decode task sees: from its first split on, and up to the split
// behind its last one.
std::int64_t SeenFrom(const Job& job, const PrefixNode& node, const AttentionTask& task) {
  const auto split = static_cast<std::size_t>(node.first_split + task.part);
  return std::max(node.seen.begin, SplitBase(job.plan.splits()[split]));
}
std::int64_t SeenUntil(const Job& job, const PrefixNode& node, const AttentionTask& task) {
  const std::int32_t part = task.part + task.count;
  if (part == node.splits) return node.seen.end;
  return SplitBase(job.plan.splits()[static_cast<std::size_t>(node.first_split + part)]);
}

// Returns the first cell of the task that the thread of task `index` probably runs next, if that
// is a decode task. The threads of a node take its tasks in order, so it is the task `threads` places later.
std::optional<CellOfHead> PlaceAfter(const Job& job, std::int64_t index) {
  const std::span<const AttentionTask> tasks = job.plan.tasks();
  int memory_node = 0;
  while (index >= job.ends[static_cast<std::size_t>(memory_node)]) ++memory_node;
  const auto after = static_cast<std::size_t>(index + job.pool.threads_of(memory_node));
  const auto end = static_cast<std::size_t>(job.ends[static_cast<std::size_t>(memory_node)]);
  if (after >= end || tasks[after].kind != AttentionTask::Kind::kDecode) {
    return std::nullopt;
  }
  const AttentionTask& task = tasks[after];
  const PrefixNode& node = NodeAt(job, task.of);
  return CellOfHead{task.kv_head, FirstCell(RunsOf(job, node), SeenFrom(job, node, task))};
}

// Floats of one partial result of all rows of the node.
std::int64_t PartialFloats(const Job& job, const PrefixNode& node) {
  return std::int64_t{node.tokens} * job.call.group() * PartialStride(job.call.layer->shape.v_dim);
}
float* PartialsOf(const Job& job, const PrefixNode& node, int kv_head) {
  return job.partials + node.partials +
         std::int64_t{kv_head} * node.partials_of_head() * PartialFloats(job, node);
}

// The rows of one sequence in the partial results of a node.
PartialResults ResultsFor(const Job& job, const PrefixNode& node, const SequencePlan& sequence,
                          int kv_head) {
  const std::int64_t row = std::int64_t{sequence.first_token - node.first_token} * job.call.group();
  return {PartialsOf(job, node, kv_head) + row * PartialStride(job.call.layer->shape.v_dim),
          node.partials_of_head(), PartialFloats(job, node)};
}

// Merges the sequence's partial results from the root to node `index`, in ascending order, into the
// first of them, and returns it.
float* MergeUntil(const Job& job, std::int32_t index, const SequencePlan& sequence,
                  const MergeTask& task) {
  const PrefixNode& node = NodeAt(job, index);
  PartialResults results = ResultsFor(job, node, sequence, task.kv_head);
  float* into = results.first;
  if (node.parent < 0) {
    results = {into + results.distance, results.count - 1, results.distance};
  } else {
    into = MergeUntil(job, node.parent, sequence, task);
  }
  MergeSplits(task, results, into);
  return into;
}

void Merge(const Job& job, const SequencePlan& sequence, int kv_head) {
  const MergeTask task{
      .call = &job.call, .kv_head = kv_head, .tokens = job.plan.TokensOf(sequence)};
  FinishRows(task, MergeUntil(job, sequence.leaf, sequence, task));
}

// The thread that finishes the last split of a (sequence, KV head) merges its partial results. The
// order of the merge does not depend on which thread that is.
void RunDecode(const Job& job, std::int64_t index, int thread) {
  const AttentionTask& task = job.plan.tasks()[static_cast<std::size_t>(index)];
  const PrefixNode& node = NodeAt(job, task.of);
  const std::span<const HistoryRun> runs = RunsOf(job, node);
  const std::int64_t before = task.part == 0 ? 0 : task.part - node.merged + 1;
  AttendDecode({
      .call = &job.call,
      .kv_head = task.kv_head,
      .splits = task.count,
      .runs = runs,
      .tokens = job.plan.TokensOf(node),
      .seen = {static_cast<Position>(SeenFrom(job, node, task)), node.seen.end},
      .merge = node.parent < 0 && task.part == 0,
      .end = {task.kv_head, EndCell(runs, SeenUntil(job, node, task))},
      .next = PlaceAfter(job, index),
      .partials = PartialsOf(job, node, task.kv_head) + before * PartialFloats(job, node),
      .workspace = job.OfThread(thread),
  });
  for (const SequencePlan& sequence : job.plan.SequencesOf(node)) {
    std::atomic_ref<std::int32_t> waiting(job.plan.Waiting(sequence, task.kv_head));
    if (waiting.fetch_sub(task.count, std::memory_order_acq_rel) == task.count) {
      waiting.store(sequence.splits, std::memory_order_relaxed);
      Merge(job, sequence, task.kv_head);
    }
  }
}

void RunPrefill(const Job& job, const AttentionTask& task, int thread) {
  const SequencePlan& sequence = job.plan.sequences()[static_cast<std::size_t>(task.of)];
  AttendPrefill({
      .call = &job.call,
      .kv_head = task.kv_head,
      .runs = RunsOf(job, sequence),
      .tokens = job.plan.TileOf(sequence, task.part),
      .workspace = job.OfThread(thread),
  });
}

void RunTask(const Job& job, std::int64_t index, int thread) {
  const AttentionTask& task = job.plan.tasks()[static_cast<std::size_t>(index)];
  switch (task.kind) {
    case AttentionTask::Kind::kPrefill: return RunPrefill(job, task, thread);
    case AttentionTask::Kind::kDecode: return RunDecode(job, index, thread);
    case AttentionTask::Kind::kZeros:
      const auto& sequence = job.plan.sequences()[static_cast<std::size_t>(task.of)];
      return WriteZeros(job.call, job.plan.TokensOf(sequence), task.kv_head);
  }
}

}  // namespace

Status Attention(ThreadPool& pool, Workspace& workspace, AttentionPlans& plans,
                 const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                 const AttentionOptions& options, const TensorView& out) {
  std::optional<StepScope> planning(StepPart::kPlans);
  plans.Prefetch(visibility);
  KVCACHE_RETURN_IF_ERROR(CheckAttention(layer, q, options, out));
  const AttentionCall call{
      .layer = &layer,
      .q = q.as<const float>(),
      .out = out.as<float>(),
      .heads = static_cast<int>(q.dims[1]),
      .scale = options.scale,
      .soft_cap = options.soft_cap,
      .sinks = options.sinks.empty() ? nullptr : options.sinks.data(),
      .bias = options.bias,
  };
  KVCACHE_ASSIGN_OR_RETURN(AttentionPlan* const known,
                           plans.For(layer, call.group(), pool.threads(), q.dims[2], visibility));
  AttentionPlan& plan = *known;
  planning.reset();
  const std::int64_t thread_floats = ThreadFloats(layer, plan);
  const std::int64_t floats = thread_floats * pool.threads() + plan.partial_floats();
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const memory,
                           workspace.Reserve(static_cast<std::size_t>(floats) * sizeof(float)));
  auto* const base = reinterpret_cast<float*>(memory);
  ThreadPool::Ends ends{};
  ends[0] = static_cast<std::int64_t>(plan.tasks().size());
  if (pool.nodes() > 1) ends = plan.SortByNodes(pool, layer, visibility);
  const Job job{.call = call,
                .visibility = visibility,
                .plan = plan,
                .pool = pool,
                .ends = ends,
                .workspace = base,
                .thread_floats = thread_floats,
                .partials = base + thread_floats * pool.threads()};
  pool.ParallelFor(ends, [&](std::int64_t index, int thread) { RunTask(job, index, thread); });
  return Status::Ok();
}

}  // namespace kvcache::cpu
