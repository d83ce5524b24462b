#include "backend/cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "backend/cpu/attention/attention_kernels.h"

namespace kvcache::cpu {
namespace {

// What the tasks of one call need. Scratch: every thread's own piece, then the partial results
// of all (stretch, KV head).
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

std::span<const HistoryRun> RunsOf(const Job& job, const Stretch& stretch) {
  return RunsOf(job, job.plan.SequencesOf(stretch).front());
}

const Stretch& StretchAt(const Job& job, std::int32_t index) {
  return job.plan.stretches()[static_cast<std::size_t>(index)];
}

// What is seen from a task's first split on, and before the split behind its last one.
std::int64_t SeenFrom(const Job& job, const Stretch& stretch, const AttentionTask& task) {
  const auto split = static_cast<std::size_t>(stretch.first_split + task.part);
  return std::max(stretch.seen.begin, SplitBase(job.plan.splits()[split]));
}
std::int64_t SeenUntil(const Job& job, const Stretch& stretch, const AttentionTask& task) {
  const std::int32_t part = task.part + task.count;
  if (part == stretch.splits) return stretch.seen.end;
  return SplitBase(job.plan.splits()[static_cast<std::size_t>(stretch.first_split + part)]);
}

// Where the thread that runs task `index` probably goes on: with as many tasks for each thread.
std::optional<CellOfHead> PlaceAfter(const Job& job, std::int64_t index) {
  const std::span<const AttentionTask> tasks = job.plan.tasks();
  const auto after = static_cast<std::size_t>(index + job.threads);
  if (after >= tasks.size() || tasks[after].kind != AttentionTask::Kind::kSplits) {
    return std::nullopt;
  }
  const AttentionTask& task = tasks[after];
  const Stretch& stretch = StretchAt(job, task.of);
  return CellOfHead{task.kv_head, FirstCell(RunsOf(job, stretch), SeenFrom(job, stretch, task))};
}

// Of all rows of the stretch.
std::int64_t PartialFloats(const Job& job, const Stretch& stretch) {
  return std::int64_t{stretch.tokens} * job.call.group() *
         PartialStride(job.call.layer->shape.v_dim);
}
float* PartialsOf(const Job& job, const Stretch& stretch, int kv_head) {
  return job.partials + stretch.partials +
         std::int64_t{kv_head} * stretch.partials_of_head() * PartialFloats(job, stretch);
}

// What a stretch has for one of its sequences.
PartialResults ResultsFor(const Job& job, const Stretch& stretch, const SequencePlan& sequence,
                          int kv_head) {
  const std::int64_t row =
      std::int64_t{sequence.first_token - stretch.first_token} * job.call.group();
  return {PartialsOf(job, stretch, kv_head) + row * PartialStride(job.call.layer->shape.v_dim),
          stretch.partials_of_head(), PartialFloats(job, stretch)};
}

// The first of the sequence's results, into which those of `index` and of the stretches before it
// are merged, in ascending order.
float* MergeUntil(const Job& job, std::int32_t index, const SequencePlan& sequence,
                  const MergeTask& task) {
  const Stretch& stretch = StretchAt(job, index);
  PartialResults results = ResultsFor(job, stretch, sequence, task.kv_head);
  float* into = results.first;
  if (stretch.before < 0) {
    results = {into + results.distance, results.count - 1, results.distance};
  } else {
    into = MergeUntil(job, stretch.before, sequence, task);
  }
  MergeSplits(task, results, into);
  return into;
}

void Merge(const Job& job, const SequencePlan& sequence, int kv_head) {
  const MergeTask task{
      .call = &job.call, .kv_head = kv_head, .tokens = job.plan.TokensOf(sequence)};
  FinishRows(task, MergeUntil(job, sequence.last_stretch, sequence, task));
}

// Whoever finishes the last split of a sequence and KV head merges: the merge's order does not
// depend on it.
void RunSplits(const Job& job, std::int64_t index, int thread) {
  const AttentionTask& task = job.plan.tasks()[static_cast<std::size_t>(index)];
  const Stretch& stretch = StretchAt(job, task.of);
  const std::span<const HistoryRun> runs = RunsOf(job, stretch);
  const std::int64_t before = task.part == 0 ? 0 : task.part - stretch.merged + 1;
  AttendSplits({
      .call = &job.call,
      .kv_head = task.kv_head,
      .splits = task.count,
      .runs = runs,
      .tokens = job.plan.TokensOf(stretch),
      .seen = {static_cast<Position>(SeenFrom(job, stretch, task)), stretch.seen.end},
      .merge = stretch.before < 0 && task.part == 0,
      .end = {task.kv_head, EndCell(runs, SeenUntil(job, stretch, task))},
      .then = PlaceAfter(job, index),
      .partials = PartialsOf(job, stretch, task.kv_head) + before * PartialFloats(job, stretch),
      .scratch = job.OfThread(thread),
  });
  for (const SequencePlan& sequence : job.plan.SequencesOf(stretch)) {
    std::atomic_ref<std::int32_t> waiting(job.plan.Waiting(sequence, task.kv_head));
    if (waiting.fetch_sub(task.count, std::memory_order_acq_rel) == task.count) {
      Merge(job, sequence, task.kv_head);
    }
  }
}

void RunBlock(const Job& job, const AttentionTask& task, int thread) {
  const SequencePlan& sequence = job.plan.sequences()[static_cast<std::size_t>(task.of)];
  AttendBlock({
      .call = &job.call,
      .kv_head = task.kv_head,
      .runs = RunsOf(job, sequence),
      .tokens = job.plan.BlockOf(sequence, task.part),
      .scratch = job.OfThread(thread),
  });
}

void RunTask(const Job& job, std::int64_t index, int thread) {
  const AttentionTask& task = job.plan.tasks()[static_cast<std::size_t>(index)];
  switch (task.kind) {
    case AttentionTask::Kind::kBlock: return RunBlock(job, task, thread);
    case AttentionTask::Kind::kSplits: return RunSplits(job, index, thread);
    case AttentionTask::Kind::kZeros:
      const auto& sequence = job.plan.sequences()[static_cast<std::size_t>(task.of)];
      return WriteZeros(job.call, job.plan.TokensOf(sequence), task.kv_head);
  }
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
                   [&](std::int64_t index, int thread) { RunTask(job, index, thread); });
  return Status::Ok();
}

}  // namespace kvcache::cpu
