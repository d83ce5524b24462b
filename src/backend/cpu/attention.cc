#include "backend/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "backend/cpu/attention_kernels.h"

namespace kvcache::cpu {
namespace {

// What the tasks of one call need. Scratch: every thread's own piece, then the partial results
// of all (sequence, KV head).
struct Job {
  const AttentionCall& call;
  const Visibility& visibility;
  AttentionPlan& plan;
  int threads;
  float* scratch;
  std::int64_t thread_floats;
  float* partials;

  float* OfThread(int thread) const { return scratch + thread * thread_floats; }
};

std::int64_t ThreadFloats(const LayerKv& layer, const AttentionPlan& plan) {
  const std::int64_t block =
      plan.block_rows() > 0 ? BlockScratchFloats(layer, plan.block_rows()) : 0;
  const std::int64_t split =
      plan.split_rows() > 0 ? SplitScratchFloats(layer, plan.split_rows()) : 0;
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

// What is seen from a task's first split on, and before the split behind its last one.
std::int64_t SeenFrom(const Job& job, const SequencePlan& sequence, const AttentionTask& task) {
  const auto split = static_cast<std::size_t>(sequence.first_split + task.part);
  return std::max(sequence.seen.begin, SplitBase(job.plan.splits()[split]));
}
std::int64_t SeenUntil(const Job& job, const SequencePlan& sequence, const AttentionTask& task) {
  const std::int32_t part = task.part + task.count;
  if (part == sequence.splits) return sequence.seen.end;
  return SplitBase(job.plan.splits()[static_cast<std::size_t>(sequence.first_split + part)]);
}

// Where the thread that runs task `index` probably goes on: with as many tasks for each thread.
std::optional<CellOfHead> PlaceAfter(const Job& job, std::int64_t index) {
  const std::span<const AttentionTask> tasks = job.plan.tasks();
  const auto after = static_cast<std::size_t>(index + job.threads);
  if (after >= tasks.size() || tasks[after].count == 0) return std::nullopt;
  const AttentionTask& task = tasks[after];
  const SequencePlan& sequence = job.plan.sequences()[static_cast<std::size_t>(task.sequence)];
  return CellOfHead{task.kv_head, FirstCell(RunsOf(job, sequence), SeenFrom(job, sequence, task))};
}

// Whoever finishes a KV head's last split merges them: the merge's order does not depend on it.
void RunSplit(const Job& job, std::int64_t index, int thread) {
  const AttentionTask& task = job.plan.tasks()[static_cast<std::size_t>(index)];
  const SequencePlan& sequence = job.plan.sequences()[static_cast<std::size_t>(task.sequence)];
  const auto tokens = job.plan.tokens().subspan(static_cast<std::size_t>(sequence.first_token),
                                                static_cast<std::size_t>(sequence.tokens));
  if (sequence.splits == 0) return WriteZeros(job.call, tokens, task.kv_head);
  const std::int64_t partial_floats =
      sequence.tokens * job.call.group() * PartialStride(job.call.layer->shape.v_dim);
  float* const partials = job.partials + sequence.partials +
                          std::int64_t{task.kv_head} * sequence.partials_of_head() * partial_floats;
  const std::int64_t before = task.part == 0 ? 0 : task.part - sequence.merged + 1;
  const std::span<const HistoryRun> runs = RunsOf(job, sequence);
  AttendSplits({
      .call = &job.call,
      .kv_head = task.kv_head,
      .splits = task.count,
      .runs = runs,
      .tokens = tokens,
      .seen = {static_cast<Position>(SeenFrom(job, sequence, task)), sequence.seen.end},
      .first = task.part == 0,
      .end = {task.kv_head, EndCell(runs, SeenUntil(job, sequence, task))},
      .then = PlaceAfter(job, index),
      .partials = partials + before * partial_floats,
      .scratch = job.OfThread(thread),
  });
  std::atomic_ref<std::int32_t> waiting(job.plan.Waiting(sequence, task.kv_head));
  if (waiting.fetch_sub(task.count, std::memory_order_acq_rel) != task.count) return;
  MergeSplits({.call = &job.call,
               .kv_head = task.kv_head,
               .count = sequence.partials_of_head(),
               .tokens = tokens,
               .partials = partials});
}

void RunBlock(const Job& job, const AttentionTask& task, int thread) {
  const SequencePlan& sequence = job.plan.sequences()[static_cast<std::size_t>(task.sequence)];
  AttendBlock({
      .call = &job.call,
      .kv_head = task.kv_head,
      .runs = RunsOf(job, sequence),
      .tokens = job.plan.BlockOf(sequence, task.part),
      .scratch = job.OfThread(thread),
  });
}

}  // namespace

Status Attention(ThreadPool& pool, Scratch& scratch, AttentionPlan& plan, const LayerKv& layer,
                 const TensorView& q, const Visibility& visibility, const AttentionOptions& options,
                 const TensorView& out) {
  KVCACHE_RETURN_IF_ERROR(CheckAttention(layer, q, visibility, options, out));
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
  plan.Build(layer, call.group(), pool.threads(), visibility);
  const std::int64_t thread_floats = ThreadFloats(layer, plan);
  const std::int64_t floats = thread_floats * pool.threads() + plan.partial_floats();
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const memory,
                           scratch.Reserve(static_cast<std::size_t>(floats) * sizeof(float)));
  auto* const base = reinterpret_cast<float*>(memory);
  const Job job{.call = call,
                .visibility = visibility,
                .plan = plan,
                .threads = pool.threads(),
                .scratch = base,
                .thread_floats = thread_floats,
                .partials = base + thread_floats * pool.threads()};
  pool.ParallelFor(static_cast<std::int64_t>(plan.tasks().size()),
                   [&](std::int64_t index, int thread) {
                     const AttentionTask& task = plan.tasks()[static_cast<std::size_t>(index)];
                     const auto sequence = static_cast<std::size_t>(task.sequence);
                     if (plan.sequences()[sequence].few) {
                       RunSplit(job, index, thread);
                     } else {
                       RunBlock(job, task, thread);
                     }
                   });
  return Status::Ok();
}

}  // namespace kvcache::cpu
